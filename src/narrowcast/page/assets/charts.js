// The pictures: each draws what is shown now, and says the same as a table below it.
const charts = (() => {
  const AXES = {
    bytes: { title: "bytes, up and down, all clients", format: units.bytes, log: true },
    network: { title: "time on the network", format: units.seconds, log: true },
    seconds: { title: "time on this machine", format: units.seconds, log: true },
    round: { title: "round", format: (x) => String(x), log: false },
  };
  const CONFIG = { responsive: true, displayModeBar: false };
  const LEGEND_MOST = 14; // labels; above, the table of runs is the legend
  const choice = (name) => document.querySelector(`input[name="${name}"]:checked`)?.value;
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /** Axis ticks in powers of ten (or one, two, five), named as the units name them. */
  function ticks(values, format) {
    const usable = values.filter((x) => x > 0);
    if (!usable.length) return {};
    const low = Math.floor(Math.log10(Math.min(...usable))), high = Math.ceil(Math.log10(Math.max(...usable)));
    const steps = high - low > 3 ? [1] : [1, 2, 5];
    const at = [];
    for (let power = low; power <= high; power++) for (const step of steps) at.push(step * 10 ** power);
    return { tickvals: at, ticktext: at.map(format) };
  }

  function layout(xaxis, yaxis, labels) {
    const narrow = innerWidth < 640;
    const line = { gridcolor: style("--rule"), linecolor: style("--rule"), zeroline: false, automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: narrow ? 12 : 13, color: style("--ink") },
      margin: { l: 48, r: 16, t: 12, b: 48 }, hovermode: "closest",
      hoverlabel: { bgcolor: style("--paper"), bordercolor: style("--rule"), font: { color: style("--ink") } },
      xaxis: { ...line, ...xaxis, title: { text: xaxis.title, standoff: 8 } },
      yaxis: { ...line, ...yaxis, title: { text: yaxis.title, standoff: 8 } },
      showlegend: labels > 1 && labels <= LEGEND_MOST,
      legend: { orientation: "h", x: 0, y: -0.2, yanchor: "top", itemclick: false, itemdoubleclick: false },
      height: (narrow ? 340 : 420) + (labels > 1 && labels <= LEGEND_MOST ? 24 * Math.ceil(labels / (narrow ? 1 : 4)) : 0),
    };
  }

  const xaxis = (name, values) => {
    const axis = AXES[name], titles = { ...axis, title: axis.title };
    if (name === "network") titles.title = `time on the network (${plain(networks())})`;
    return { title: titles.title, ...(axis.log ? { type: "log", ...ticks(values, axis.format) } : {}) };
  };
  const networks = () => [...new Set(state.page.runs.map((run) => run.network_name).filter(Boolean))].join(", ");
  const better = (runs, name) => {
    if (name === "loss" || name === "training loss") return "lower is better";
    const known = runs.find((run) => run.metric === name);
    return known ? `${known.higher ? "higher" : "lower"} is better` : "";
  };
  const titled = (runs, name) => [name, better(runs, name)].filter(Boolean).join(", ");

  /** Plotly reads a few tags in names; what comes from a folder is to be read as it is. */
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  /** The runs that have this curve, as one trace a label (they are seeds of one setting) with gaps between the runs. */
  function lines(runs, curve, x, points) {
    const labels = new Map();
    for (const run of runs)
      if (run.curves[curve]?.[x]) labels.set(run.label, [...(labels.get(run.label) ?? []), run]);
    const traces = [], format = AXES[x].format;
    for (const [label, members] of labels) {
      const look = state.look(members[0]), ways = { x: [], y: [], text: [] }, ends = { x: [], y: [], text: [] };
      for (const run of members) {
        const { [x]: at, y } = run.curves[curve], where = y.length - 1;
        for (let i = 0; i <= where; i++) add(ways, at[i], y[i], run);
        add(ends, at[where], y[where], run);
        add(ways, null, null, run);
      }
      function add(to, at, value, run) {
        to.x.push(at);
        to.y.push(value);
        to.text.push(at === null ? "" : `${format(at)}<br>seed ${run.seed}`);
      }
      const trace = (part, mode, showlegend) => traces.push({
        type: "scatter", ...part, mode, name: plain(label), legendgroup: label, showlegend,
        line: { color: look.colour, dash: look.dash, width: points ? 1.5 : 2 },
        marker: { color: look.colour, symbol: look.symbol, size: points ? 11 : 8 },
        hovertemplate: "%{fullData.name}<br>%{y:.4g} at %{text}<extra></extra>",
      });
      const short = members.every((run) => run.curves[curve].y.length === 1);
      if (!short) trace(ways, "lines", !points);
      if (short || points) trace(ends, "markers", true);
    }
    const drawn = [...labels.values()].flat();
    return { traces, labels: labels.size, drawn, values: drawn.flatMap((run) => run.curves[curve][x]) };
  }

  function draw(id, traces, made, said) {
    const place = document.getElementById(id);
    place.setAttribute("aria-label", said);
    const empty = !traces.length;
    place.hidden = empty;
    document.getElementById(`${id}-empty`).hidden = !empty;
    return empty ? Plotly.purge(place) : Plotly.react(place, traces, made, CONFIG);
  }

  function frontier() {
    const x = choice("frontier-x"), y = choice("frontier-y");
    const { traces, labels, values, drawn } = lines(state.shown(), y, x, true);
    const title = titled(drawn, plain(y));
    draw("frontier", traces, layout(xaxis(x, values), { title }, labels),
      `${y} against ${AXES[x].title}: ${drawn.length} runs. The table below has the numbers.`);
    const rows = drawn.map((run) => {
      const curve = run.curves[y];
      return [run.label, String(run.seed), AXES[x].format(curve[x].at(-1)), units.metric(curve.y.at(-1))];
    });
    place("frontier", table(`${y} at the end`, ["run", "seed", AXES[x].title, y], rows));
  }

  function curves() {
    const x = choice("curves-x"), y = choice("curves-y");
    const { traces, labels, values, drawn } = lines(state.shown(), y, x, false);
    draw("curves", traces, layout(xaxis(x, values), { title: titled(drawn, plain(y)) }, labels),
      `${y} by ${AXES[x].title}: ${drawn.length} runs. The table below has some of the points.`);
    const rows = drawn.map((run) => {
      const values = run.curves[y].y, at = [0, 0.25, 0.5, 0.75, 1].map((part) => Math.round(part * (values.length - 1)));
      return [`${run.label}, seed ${run.seed}`, ...at.map((i) => units.metric(values[i]))];
    });
    place("curves", table(`${y} along the run`, ["run", "start", "a quarter", "half", "three quarters", "end"], rows));
  }

  const KINDS = {
    up: "up: updates", current: "down: the current model", catch_up: "down: catching up",
    whole: "down: whole models again", first: "down: first contact",
  };
  const short = (name, most = innerWidth < 640 ? 15 : 28) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
  function stacked(id, shown, parts, title, format) {
    const runs = shown.slice().reverse();
    const names = runs.map((run) => `${run.label}${runs.filter((other) => other.label === run.label).length > 1 ? `, seed ${run.seed}` : ""}`);
    const traces = Object.entries(parts).map(([name, { label, colour, of }]) => ({
      type: "bar", orientation: "h", name: plain(label), y: runs.map((_, i) => i), x: runs.map(of),
      marker: { color: style(colour) }, text: runs.map((run) => format(of(run))), textposition: "none",
      customdata: names.map(plain), hovertemplate: "%{customdata}<br>%{fullData.name}: %{text}<extra></extra>",
    })).filter((trace) => trace.x.some((value) => value > 0));
    const made = layout({ title, rangemode: "tozero" }, { tickvals: runs.map((_, i) => i), ticktext: names.map((name) => plain(short(name))), title: "" }, Math.max(2, traces.length));
    Object.assign(made.legend, { traceorder: "normal", yref: "container", y: 0, yanchor: "bottom" }); // few bars make a low plot
    const bar = Math.max(14, Math.min(34, 900 / Math.max(1, runs.length)));
    draw(id, runs.length ? traces : [], { ...made, barmode: "stack", bargap: 0.25, height: 130 + 24 * (innerWidth < 640 ? traces.length : 1) + bar * runs.length },
      `${title}, ${runs.length} runs. The table below has the numbers.`);
    const rows = runs.map((run, i) => [names[i], ...Object.values(parts).map(({ of }) => format(of(run)))]).reverse();
    place(id, table(title, ["run", ...Object.values(parts).map(({ label }) => label)], rows));
  }

  function kinds() {
    const relative = choice("kinds-x") === "share";
    const told = state.shown().filter((run) => run.kinds !== null); // a private run tells no bytes
    const whole = (run) => Math.max(1, run.up + run.down);
    const parts = Object.fromEntries(Object.entries(KINDS).map(([name, label], i) => [name, {
      label, colour: `--part-${i}`,
      of: (run) => (name === "up" ? run.up : run.kinds[name]) / (relative ? whole(run) / 100 : 1),
    }]));
    stacked("kinds", told, parts, relative ? "percent of the run's bytes" : "bytes of the run",
      relative ? (x) => `${x.toFixed(1)} %` : units.bytes);
    if (!relative) {
      const most = Math.max(...told.map((run) => run.up + run.down), 1);
      const step = 10 ** Math.floor(Math.log10(most)), at = [0, 1, 2, 3, 4, 5, 6, 8, 10].map((i) => i * step).filter((x) => x <= 1.02 * most);
      const shown = at.length > 6 ? at.filter((_, i) => i % 2 === 0) : at;
      if (!document.getElementById("kinds").hidden)
        Plotly.relayout("kinds", { "xaxis.tickvals": shown, "xaxis.ticktext": shown.map(units.bytes) });
    }
  }

  function dropped() {
    const why = [...new Set(state.page.runs.flatMap((run) => Object.keys(run.dropped)))].sort();
    const parts = Object.fromEntries(why.map((name, i) => [name, {
      label: name, colour: `--part-${i % 5}`, of: (run) => run.dropped[name] ?? 0,
    }]));
    const any = state.shown().some((run) => Object.keys(run.dropped).length);
    if (any) return stacked("dropped", state.shown(), parts, "clients dropped, over all rounds", String);
    draw("dropped", [], {}, "");
    place("dropped", "");
  }

  const place = (id, content) => document.getElementById(`${id}-table`).replaceChildren(content);
  const all = { frontier, curves, kinds, dropped };

  // A picture is drawn when it comes near the screen, and again only if something has changed since.
  const stale = new Set(), near = new Set();
  const watch = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) isIntersecting ? near.add(target.dataset.chart) : near.delete(target.dataset.chart);
    refresh();
  }, { rootMargin: "150px" });
  function refresh() {
    for (const name of [...stale].filter((one) => near.has(one))) {
      stale.delete(name);
      all[name]();
    }
  }
  function redraw(...names) {
    for (const name of names.length ? names : Object.keys(all)) stale.add(name);
    refresh();
  }
  function add(name, one) {
    all[name] = one;
    const section = document.getElementById(name).closest("section");
    section.dataset.chart = name;
    watch.observe(section);
  }
  Object.entries(all).forEach(([name, one]) => add(name, one));
  addEventListener("beforeprint", () => { Object.keys(all).forEach((name) => near.add(name)); redraw(); });
  return { add, redraw, layout, draw, AXES, CONFIG, place, plain, style, ticks };
})();
