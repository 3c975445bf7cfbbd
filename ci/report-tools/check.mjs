// Uses pages that `cargo tidegate report` wrote in headless Chromium, and fails if a reader
// would stumble: called by ci/report-in-browser.
//
//   node check.mjs --tools FOLDER [--screenshots FOLDER] PAGE…
//   node check.mjs --tools FOLDER --plant PAGE      plants mistakes, each of which must be found
import { readFileSync, mkdirSync, writeFileSync, mkdtempSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const { values: options, positionals: pages } = parseArgs({
  allowPositionals: true,
  options: { tools: { type: "string" }, screenshots: { type: "string" }, plant: { type: "boolean" } },
});
const require = createRequire(path.join(path.resolve(options.tools), "package.json"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const WIDTHS = [400, 1280];
const SCHEMES = ["light", "dark"];

/** Opens a page and returns it with a list of all that must not happen meanwhile. */
async function opened(browser, file, settings) {
  const context = await browser.newContext({ reducedMotion: "reduce", ...settings });
  const page = await context.newPage();
  const wrong = [];
  page.on("console", (message) => wrong.push(`console ${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => { wrong.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  const url = pathToFileURL(path.resolve(file)).href;
  page.on("request", (request) => { if (request.url() !== url) wrong.push(`request: ${request.url()}`); });
  await page.goto(url);
  return { context, page, wrong };
}

/** What is wider than the page, in words. */
const overflow = (page) => page.evaluate(() => {
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (wide <= 0) return [];
  const isBoxed = (element) => element.closest(".scroll, pre, .vh, .skip, svg") !== null;
  const beyond = [...document.querySelectorAll("body *")].filter((element) =>
    !isBoxed(element) && element.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5);
  return [`the body scrolls sideways by ${wide} px: ${beyond.slice(0, 3).map((element) => `${element.tagName}.${element.className}`).join(", ")}`];
});

/** Violations that axe finds. */
async function inaccessible(page) {
  // Into the page's world and past its policy, as an extension's code would be.
  const session = await page.context().newCDPSession(page);
  await session.send("Runtime.evaluate", { expression: axe });
  const { result, exceptionDetails } = await session.send("Runtime.evaluate", {
    expression: `axe.run(document, { resultTypes: ["violations"] }).then((found) => JSON.stringify(found.violations.map((violation) =>
      \`\${violation.id}: \${violation.help}: \${violation.nodes.length} times, such as \${violation.nodes[0].html.slice(0, 160)} \${violation.nodes[0].any.map((check) => check.message).join("; ")}\`)))`,
    awaitPromise: true,
  });
  if (exceptionDetails) return [`axe did not run: ${exceptionDetails.text}`];
  return JSON.parse(result.value).map((text) => `axe: ${text}`);
}

/** Walks the plots and the grids by keyboard; what is announced must change. */
async function keyboard(page) {
  const wrong = [];
  for (const figure of await page.locator("figure[data-walk]").all()) {
    const id = await figure.getAttribute("id");
    const range = figure.locator("input[type=range]");
    const told = figure.locator("output");
    await range.focus();
    const points = Number(await range.getAttribute("max")) + 1;
    if (points < 2) continue;
    const first = await told.textContent();
    await page.keyboard.press("ArrowRight");
    const second = await told.textContent();
    if (!first || first === second) wrong.push(`${id}: the arrow key announces nothing new: ${first}`);
    if (await range.getAttribute("aria-valuetext") !== second) wrong.push(`${id}: a screen reader hears another text`);
    await page.keyboard.press("End");
    const name = await figure.locator("table[data-points] tbody tr:last-child th").textContent();
    if (!(await told.textContent()).startsWith(name)) wrong.push(`${id}: the last point is not "${name}"`);
    const outline = await range.evaluate((element) => getComputedStyle(element).outlineStyle);
    if (outline === "none") wrong.push(`${id}: the focus is not to be seen`);
  }
  for (const grid of await page.locator("[role=grid]").all()) {
    const id = await grid.getAttribute("id");
    const stops = await grid.locator("td[tabindex='0']").count();
    if (stops !== 1) wrong.push(`${id}: the grid has ${stops} stops for the tabulator`);
    const told = grid.locator("xpath=ancestor::figure").locator("output");
    await grid.locator("td[tabindex='0']").focus();
    const texts = [await told.textContent()];
    for (const key of ["ArrowRight", "End", "Home", "Control+End"]) {
      await page.keyboard.press(key);
      texts.push(await told.textContent());
    }
    if (texts.some((text) => !text) || texts[0] === texts[1] || texts[3] !== texts[0]) {
      wrong.push(`${id}: arrow keys announce ${JSON.stringify(texts)}`);
    }
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    if (outline === "none") wrong.push(`${id}: the focus is not to be seen`);
  }
  return wrong;
}

/** The switch between light and dark turns the page over, and back. */
async function themes(page) {
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const button = page.locator("#theme");
  const before = [await ground(), await button.textContent()];
  await button.focus();
  await page.keyboard.press("Enter");
  const after = [await ground(), await button.textContent()];
  const wrong = before[0] === after[0] || before[1] === after[1] ? ["the switch of themes does nothing"] : [];
  await page.reload();
  if (await ground() !== after[0]) wrong.push("the theme that was chosen is forgotten");
  await button.press("Enter");
  if (await ground() !== before[0]) wrong.push("the theme cannot be switched back");
  return wrong;
}

/** Every part that is folded opens by keyboard. */
async function foldable(page) {
  const wrong = [];
  for (const summary of await page.locator("summary").all()) {
    if (!await summary.isVisible()) continue;
    await summary.press("Enter");
    if (!await summary.evaluate((element) => element.parentElement.open)) wrong.push(`${await summary.textContent()} does not open`);
  }
  return wrong;
}

/** All text of the page, folded parts too; without what the script alone adds. */
const text = (page) => page.evaluate(() => {
  const copy = document.querySelector("main").cloneNode(true);
  for (const own of copy.querySelectorAll(".walk, output, script")) own.remove();
  return copy.textContent.replace(/\s+/g, " ");
});

async function check(browser, file, { shots, widths = WIDTHS, schemes = SCHEMES } = {}) {
  const wrong = [];
  const name = path.basename(file, ".html");
  const note = (what, found) => wrong.push(...found.map((text) => `${name}, ${what}: ${text}`));
  let whole = "";
  for (const width of widths) for (const colorScheme of schemes) {
    const what = `${width} px, ${colorScheme}`;
    const { context, page, wrong: seen } = await opened(browser, file, { viewport: { width, height: 900 }, colorScheme });
    note(what, await overflow(page));
    whole = await text(page);
    if (shots) await page.screenshot({ path: path.join(shots, `${name}-${width}-${colorScheme}.png`), fullPage: true });
    note(what, await inaccessible(page));
    if (colorScheme === "light") {
      note(what, await keyboard(page));
      note(what, await foldable(page));
      note(`${what}, all open`, await overflow(page));
      note(what, await themes(page));
    }
    note(what, seen);
    await context.close();
  }
  const { context, page, wrong: seen } = await opened(browser, file, { viewport: { width: 1280, height: 900 }, javaScriptEnabled: false });
  // Without scripts the page cannot be asked, and so its parser is.
  const plain = await page.locator("main").evaluate((main) => {
    for (const own of main.querySelectorAll(".walk, output, script")) own.remove();
    return main.textContent.replace(/\s+/g, " ");
  });
  if (plain !== whole) note("without script", ["some of the text is missing"]);
  if (await page.locator(".walk:visible, #theme:visible").count() > 0) note("without script", ["it shows what needs the script"]);
  note("without script", await overflow(page));
  note("without script", seen);
  await context.close();
  return wrong;
}

/** Mistakes, each with what must be said of it. */
const PLANTED = [
  ["a wide table", (html) => html.replace("<main", '<table style="x" width="3000"><tr><td>wide</td></tr></table><main'), /scrolls sideways/],
  ["a script of a stranger's", (html) => html.replace("<main", "<script>document.title = 1</script><main"), /script-src|Content Security Policy/],
  ["a picture from the network", (html) => html.replace("<main", '<img alt="" src="http://example.invalid/x.png"><main'), /request|Content Security Policy/],
  ["a figure without a name", (html) => html.replace(/<title id="[^"]*-title">[^<]*<\/title>/, ""), /axe: svg-img-alt/],
  ["a grid that stands still", (html) => html.replace(/<meta http-equiv[^>]*>/, "").replace('case "ArrowRight": column += 1', 'case "ArrowRight": column += 0'), /arrow keys announce/],
  ["faint text", (html) => html.replace("<main", '<p><font color="#cccccc">faint</font></p><main'), /color-contrast/],
];

async function plant(browser, file) {
  const html = readFileSync(file, "utf8");
  const folder = mkdtempSync(path.join(tmpdir(), "report-"));
  let missed = 0;
  for (const [what, edit, expected] of PLANTED) {
    const edited = edit(html);
    if (edited === html) throw new Error(`nothing was planted for ${what}`);
    const at = path.join(folder, "planted.html");
    writeFileSync(at, edited);
    const found = await check(browser, at, { widths: [400], schemes: ["light"] });
    const isFound = found.some((text) => expected.test(text));
    if (!isFound) { missed += 1; console.log(`FAIL  ${what} was planted and not found; what was:\n      ${found.join("\n      ")}`); }
  }
  console.log(`ci/report-in-browser: ${PLANTED.length - missed} of ${PLANTED.length} planted mistakes were found`);
  return missed;
}

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: process.getuid() === 0 ? ["--no-sandbox"] : [] });
try {
  if (options.plant) {
    process.exitCode = await plant(browser, pages[0]) > 0 ? 1 : 0;
  } else {
    if (options.screenshots) mkdirSync(options.screenshots, { recursive: true });
    const wrong = [];
    for (const file of pages) wrong.push(...await check(browser, file, { shots: options.screenshots }));
    for (const text of wrong) console.log(`FAIL  ${text}`);
    console.log(`ci/report-in-browser: ${pages.length} pages, at ${WIDTHS.join(" and ")} px, in ${SCHEMES.join(" and ")}; ${wrong.length} problems`);
    process.exitCode = wrong.length > 0 ? 1 : 0;
  }
} finally {
  await browser.close();
}
