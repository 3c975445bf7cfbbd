// What a page can do beyond being read: light or dark, a walk along each plot, and a grid
// of survivors that arrow keys move in. It reads only what is in the page's tables.
(() => {
  "use strict";

  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const KEY = "tidegate-theme";
  const remembered = () => {
    try { return localStorage.getItem(KEY); } catch { return null; }
  };
  const remember = (name) => {
    try { localStorage.setItem(KEY, name); } catch { /* A page from a file may have no store. */ }
  };
  const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const showTheme = () => { theme.textContent = isDark() ? "Light theme" : "Dark theme"; };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    showTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
  showTheme();

  // The name of each column, and its group's where there are groups.
  const columnsOf = (table) => {
    const rows = [...table.tHead.rows];
    if (rows.length === 1) return [...rows[0].cells].map((cell) => ({ group: "", name: cell.textContent }));
    const columns = [{ group: "", name: rows[0].cells[0].textContent }];
    const own = [...rows[1].cells];
    for (const group of [...rows[0].cells].slice(1)) {
      for (const cell of own.splice(0, group.colSpan)) columns.push({ group: group.textContent, name: cell.textContent });
    }
    return columns;
  };

  for (const figure of document.querySelectorAll("figure[data-walk]")) {
    const table = figure.querySelector("table[data-points]");
    const walk = figure.querySelector(".walk");
    const rows = [...table.tBodies[0].rows];
    if (rows.length === 0) continue;
    const range = walk.querySelector("input");
    const told = walk.querySelector("output");
    const columns = columnsOf(table);
    const said = (row) => {
      let group = "";
      const parts = [...row.cells].map((cell, at) => {
        if (at === 0) return cell.textContent;
        const column = columns[at];
        const name = column.group === group ? column.name : `${column.group}: ${column.name}`;
        group = column.group;
        return cell.textContent === "" ? "" : `${name} ${cell.textContent}`;
      });
      return parts.filter((part) => part !== "").join("; ");
    };
    const go = (to) => {
      const row = rows[to];
      range.value = to;
      told.textContent = said(row);
      range.setAttribute("aria-valuetext", told.textContent);
      if (row.dataset.x !== undefined) {
        for (const cursor of figure.querySelectorAll(".cursor")) {
          cursor.setAttribute("x1", `${row.dataset.x}%`);
          cursor.setAttribute("x2", `${row.dataset.x}%`);
          cursor.classList.add("on");
        }
      }
      figure.querySelector(".at")?.classList.remove("at");
      figure.querySelector(`[data-i="${to}"]`)?.classList.add("at");
    };
    range.addEventListener("input", () => go(range.valueAsNumber));
    range.addEventListener("focus", () => go(range.valueAsNumber));
    for (const frame of figure.querySelectorAll("[data-i]")) {
      frame.addEventListener("pointerenter", () => go(Number(frame.dataset.i)));
    }
    const places = rows.map((row) => Number(row.dataset.x));
    for (const panel of figure.querySelectorAll("svg.panel")) {
      panel.addEventListener("pointermove", (event) => {
        const box = panel.getBoundingClientRect();
        const at = ((event.clientX - box.left) / box.width) * 100;
        let nearest = 0;
        places.forEach((place, to) => {
          if (Math.abs(place - at) < Math.abs(places[nearest] - at)) nearest = to;
        });
        go(nearest);
      });
    }
    told.textContent = "Arrow keys move along the plot, and so does the pointer.";
    walk.hidden = false;
  }

  for (const figure of document.querySelectorAll("figure[data-heat]")) {
    const table = figure.querySelector("table.heat");
    const told = figure.querySelector("output");
    const columns = columnsOf(table);
    const cells = [...table.tBodies[0].rows].map((row) => [...row.cells].slice(1));
    if (cells.length === 0) continue;
    table.setAttribute("role", "grid");
    cells.flat().forEach((cell) => { cell.tabIndex = -1; });
    cells[0][0].tabIndex = 0;
    const tell = (row, column) => {
      const cell = cells[row][column];
      const what = [...cell.parentElement.cells[0].children].map((part) => part.textContent).join(", ");
      const round = columns[column + 1].name;
      const when = round === "all" ? "in all rounds" : round === "before" ? "before the first round" : `born in round ${round}`;
      told.textContent = `${what}; ${when}: ${cell.dataset.said ?? cell.textContent}`;
    };
    const placeOf = (cell) => {
      const row = cells.findIndex((row) => row.includes(cell));
      return row < 0 ? null : [row, cells[row].indexOf(cell)];
    };
    table.addEventListener("focusin", (event) => {
      const place = placeOf(event.target);
      if (!place) return;
      table.querySelector('td[tabindex="0"]').tabIndex = -1;
      event.target.tabIndex = 0;
      tell(...place);
    });
    table.addEventListener("pointerover", (event) => {
      const place = placeOf(event.target.closest("td"));
      if (place) tell(...place);
    });
    table.addEventListener("keydown", (event) => {
      const place = placeOf(event.target);
      if (!place || event.altKey || event.metaKey) return;
      let [row, column] = place;
      const [lastRow, lastColumn] = [cells.length - 1, cells[0].length - 1];
      switch (event.key) {
        case "ArrowLeft": column -= 1; break;
        case "ArrowRight": column += 1; break;
        case "ArrowUp": row -= 1; break;
        case "ArrowDown": row += 1; break;
        case "Home": column = 0; if (event.ctrlKey) row = 0; break;
        case "End": column = lastColumn; if (event.ctrlKey) row = lastRow; break;
        default: return;
      }
      event.preventDefault();
      cells[Math.min(Math.max(row, 0), lastRow)][Math.min(Math.max(column, 0), lastColumn)].focus();
    });
  }
})();
