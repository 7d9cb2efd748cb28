// What the page knows: the runs, which of them are shown, and how each of them looks.
const state = (() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  const listeners = [];
  const SYMBOLS = {
    o: "circle", s: "square", "^": "triangle-up", D: "diamond", "*": "star", P: "cross", v: "triangle-down",
    X: "x", "<": "triangle-left", p: "pentagon", ">": "triangle-right", h: "hexagon", d: "diamond-tall",
    8: "octagon", H: "hexagon2",
  };
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];

  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };

  /** A colour of the table of methods, moved to where it can be read on this background. */
  function legible(colour, turn) {
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16) / 255);
    const most = Math.max(r, g, b), least = Math.min(r, g, b), spread = most - least;
    let hue = 0;
    if (spread) {
      if (most === r) hue = ((g - b) / spread + 6) % 6;
      else hue = most === g ? (b - r) / spread + 2 : (r - g) / spread + 4;
    }
    const light = (most + least) / 2;
    const full = spread ? spread / (1 - Math.abs(2 * light - 1)) : 0;
    const [low, high] = dark() ? [0.6, 0.76] : [0.24, 0.42];
    const moved = Math.min(high, Math.max(low, light));
    return `hsl(${Math.round(hue * 60 + 24 * turn) % 360} ${Math.round(full * 100)}% ${Math.round(moved * 100)}%)`;
  }

  /** Runs of one label look alike (they are seeds of one setting); further labels of a method are turned. */
  function styles() {
    const labels = new Map(), seen = new Map();
    for (const run of page.runs) {
      if (labels.has(run.label)) continue;
      const nth = seen.get(run.method) ?? 0;
      seen.set(run.method, nth + 1);
      labels.set(run.label, {
        colour: legible(run.colour, nth), symbol: SYMBOLS[run.marker] ?? "circle", dash: DASHES[nth % DASHES.length],
      });
    }
    return labels;
  }
  let looks = styles();
  const changed = () => { for (const tell of listeners) tell(); };
  return {
    page, hidden, dark,
    shown: () => page.runs.filter((run) => !hidden.has(run.id)),
    look: (run) => looks.get(run.label),
    on: (tell) => listeners.push(tell),
    changed,
    restyled: () => { looks = styles(); changed(); },
    show(ids, visible) {
      for (const id of ids) visible ? hidden.delete(id) : hidden.add(id);
      changed();
    },
    replace(runs) {
      page.runs = runs;
      looks = styles();
      changed();
    },
  };
})();

/** An element with properties and children; strings become text, never markup. */
function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** A table: a head of words, rows of cells; the first cell of a row names it. */
function table(caption, head, rows, numeric = true) {
  const cells = (row) => row.map((cell, i) => element(i ? "td" : "th", i ? {} : { scope: "row" }, cell));
  return element("table", { class: numeric ? "numbers" : "words" },
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...head.map((cell) => element("th", { scope: "col" }, cell)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells(row)))));
}
