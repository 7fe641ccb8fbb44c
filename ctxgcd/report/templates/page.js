"use strict";

// Tables: a click on a heading sorts by it, another one turns the order round; a gap stays at the end.
function sortBy(table, heading) {
  const column = heading.cellIndex;
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of heading.parentNode.cells) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0];
  const shown = (row) => row.cells[column].firstChild?.textContent.trim() ?? "";
  const number = (text) => parseFloat(text.replace(/,/g, ""));
  const gap = (text) => text === "" || text === "–";
  const lines = [...body.rows].map((row) => ({ row, text: shown(row) }));
  const numeric = lines.every(({ text }) => gap(text) || !Number.isNaN(number(text)));
  const order = numeric ? (a, b) => number(a) - number(b) : (a, b) => a.localeCompare(b, "en", { numeric: true });
  lines.sort((a, b) => gap(a.text) - gap(b.text) || (down ? -1 : 1) * (gap(a.text) ? 0 : order(a.text, b.text)));
  body.append(...lines.map(({ row }) => row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const button of table.tHead.querySelectorAll("button")) {
    button.addEventListener("click", () => sortBy(table, button.parentNode));
  }
}

// Embeddings: the mark nearest to the pointer (or chosen with the arrow keys) says which image it is and shows it.
for (const figure of document.querySelectorAll(".embedding")) {
  const { texts, colourings, sheet } = JSON.parse(figure.querySelector("script").textContent);
  const [svg, tip, ring] = ["svg", ".tip", ".ring"].map((name) => figure.querySelector(name));
  const marks = [...svg.querySelectorAll("use")];
  const places = marks.map((mark) => [mark.x.baseVal.value, mark.y.baseVal.value]);
  let chosen = -1;

  const show = (number) => {
    chosen = number;
    tip.hidden = number < 0;
    ring.toggleAttribute("hidden", number < 0);
    if (number < 0) return;
    const [x, y] = places[number];
    ring.setAttribute("cx", x);
    ring.setAttribute("cy", y);
    const of = Object.entries(colourings).map(([name, { labels, of }]) => `${name}: ${labels[of[number]]}`);
    tip.querySelector(".tip-text").textContent = [...of, texts[number]].join("\n");
    if (sheet) {
      const image = tip.querySelector("img");
      image.style.left = `${-sheet.side * (number % sheet.columns)}px`;
      image.style.top = `${-sheet.side * Math.floor(number / sheet.columns)}px`;
    }
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const room = figure.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, x * scale + 14))}px`;
    tip.style.top = `${box.top - figure.getBoundingClientRect().top + y * scale + 14}px`;
  };

  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const away = places.map(([x, y]) => (x - at.x) ** 2 + (y - at.y) ** 2);
    const least = away.reduce((best, value, number) => (value < away[best] ? number : best), 0);
    show(away[least] < 900 ? least : -1);
  });
  svg.addEventListener("pointerleave", () => show(-1));
  svg.addEventListener("blur", () => show(-1));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") show(-1);
    if (!step) return;
    event.preventDefault();
    show((Math.max(chosen, step < 0 ? 0 : -1) + step + marks.length) % marks.length);
  });

  for (const button of figure.querySelectorAll(".choices button")) {
    button.addEventListener("click", () => {
      for (const other of figure.querySelectorAll(".choices button")) other.setAttribute("aria-pressed", other === button);
      const { colours, of } = colourings[button.value];
      marks.forEach((mark, number) => mark.setAttribute("fill", colours[of[number]]));
      for (const legend of figure.querySelectorAll(".legend")) legend.hidden = legend.dataset.of !== button.value;
    });
  }
}

// A link of the contents opens the section that it leads to.
const open = () => document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", "");
addEventListener("hashchange", open);
open();
