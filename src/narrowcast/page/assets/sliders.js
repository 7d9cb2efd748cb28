// The planner's sliders: what each stands for, and the rows of `planner.plan` for where they are.
const sliders = (() => {
  const BITS = [null, 16, 8, 4, 3, 2, 1, 0.5, 0.25];
  const REFRESH = [[1, 8], [1, 4], [1, 2], [1, 1], [2, 1], [4, 1], [8, 1]]; // epochs a stage: numerator / denominator
  const start = state.page.planner.start;
  const power = (base, low, high, step, value) => ({
    min: Math.log(low) / Math.log(base), max: Math.log(high) / Math.log(base), step, from: Math.log(value) / Math.log(base),
    of: (x) => base ** x,
  });
  const whole = (scale) => ({ ...scale, of: (x) => Math.max(1, Math.round(scale.of(x))) });
  const bits = (x) => (BITS[x] === null ? "the method's own" : `${BITS[x]}`);
  const NETWORKS = [null, ...Object.keys(state.page.planner.constants.networks)];
  const rounds = () => Math.ceil(read("clients") / cohort());
  const cohort = () => Math.min(read("cohort"), read("clients"));
  const SLIDERS = {
    params: { label: "D, parameters", ...whole(power(10, 1e3, 1e11, 0.01, start.params)), say: units.count },
    dim: { label: "d, numbers a message", ...whole(power(2, 1, 2 ** 24, 0.25, start.dim)), say: units.whole },
    up_bits: { label: "bits up", min: 0, max: BITS.length - 1, step: 1, from: 0, of: (x) => BITS[x], text: bits },
    down_bits: { label: "bits down", min: 0, max: BITS.length - 1, step: 1, from: 0, of: (x) => BITS[x], text: bits },
    subspaces: { label: "K, subspaces", min: 1, max: 64, step: 1, from: start.subspaces, of: Number, say: String },
    refresh: {
      label: "a new A", min: 0, max: REFRESH.length - 1, step: 1, from: 3,
      of: (x) => Math.max(1, Math.round((rounds() * REFRESH[x][0]) / REFRESH[x][1])),
      say: (n) => (n === rounds() ? "every epoch" : `every ${n === 1 ? "round" : `${units.whole(n)} rounds`}`),
    },
    epochs: { label: "epochs", ...whole(power(2, 1, 1024, 0.05, start.epochs)), say: String },
    clients: { label: "clients", ...whole(power(10, 1, 1e7, 0.01, start.clients)), say: units.whole },
    cohort: { label: "clients a round", ...whole(power(10, 1, 1e4, 0.01, start.cohort)), say: units.whole },
    participation: { label: "come, of those asked", min: 0.01, max: 1, step: 0.01, from: 1, of: Number, say: (x) => `${Math.round(x * 100)} %` },
    up_bps: { label: "a client's link up", ...power(10, 1e4, 1e10, 0.05, start.up_bps), say: units.rate },
    down_bps: { label: "a client's link down", ...power(10, 1e4, 1e10, 0.05, start.down_bps), say: units.rate },
    network: {
      label: "all links together", min: 0, max: NETWORKS.length - 1, step: 1, from: Math.max(0, NETWORKS.indexOf(start.network ?? "4g")),
      of: (x) => NETWORKS[x], text: (x) => NETWORKS[x] ?? "not asked",
    },
    examples: { label: "examples a step", ...whole(power(10, 1, 1e4, 0.01, start.examples)), say: units.whole },
  };
  const input = (name) => document.getElementById(`plan-${name}`);
  const moved = new Set(); // until it is, a slider stands for what it began with, whatever its steps
  const read = (name) => (moved.has(name) || !(name in start) ? SLIDERS[name].of(Number(input(name).value)) : start[name]);

  function asked() {
    const values = Object.fromEntries(Object.keys(SLIDERS).map((name) => [name, read(name)]));
    values.dim = Math.min(values.dim, values.params);
    return { ...values, cohort: cohort(), local_steps: 5 };
  }

  function redraw() {
    for (const [name, slider] of Object.entries(SLIDERS)) {
      const said = slider.text ? slider.text(Number(input(name).value)) : slider.say(name === "cohort" ? cohort() : read(name));
      document.getElementById(`plan-${name}-said`).textContent = said;
      input(name).setAttribute("aria-valuetext", said);
    }
    const constants = state.page.planner.constants, values = asked(), network = values.network;
    const rows = planner.plan(values, constants);
    charts.place("plan", table("One client over the whole training, and all of them together.",
      ["method", "up", "down", "fewer bytes", "time up", "time down", "all clients", ...(network ? [`training on ${network}`] : [])],
      rows.map((row) => [row.method, units.bytes(row.bytes_up), units.bytes(row.bytes_down), units.times(row.compression),
        units.seconds(row.seconds_up), units.seconds(row.seconds_down), units.bytes(row.bytes_all_clients),
        ...(network ? [units.seconds(row.training_seconds)] : [])])));
    const turned = rows.slice().reverse(), seconds = turned.map((row) => (network ? row.training_seconds : row.seconds));
    document.getElementById("plan-source").textContent = network
      ? `Training on ${network}: every round lasts until the slowest client of its cohort is done. ${constants.sources[network]}` : "";
    const made = charts.layout({ title: network ? `time of the whole training on ${network}` : "time of one client's link, up and down", type: "log", ...charts.ticks(seconds, units.seconds) }, { title: "" }, 1);
    charts.draw("plan", [{
      type: "scatter", mode: "markers+text", x: seconds, y: turned.map((row) => row.method), text: seconds.map(units.seconds),
      textposition: "top center", cliponaxis: false, hovertemplate: "%{y}: %{text}<extra></extra>",
      marker: { size: 12, color: charts.style("--accent") }, textfont: { color: charts.style("--ink") },
    }], { ...made, height: 90 + 44 * rows.length }, "Time for every method. The table below has the numbers.");
  }

  document.getElementById("sliders").append(...Object.entries(SLIDERS).map(([name, slider]) => element("div", { class: "slider" },
    element("label", { for: `plan-${name}` }, slider.label),
    element("output", { id: `plan-${name}-said`, for: `plan-${name}` }),
    element("input", { id: `plan-${name}`, type: "range", min: slider.min, max: slider.max, step: slider.step, value: slider.from, oninput: () => { moved.add(name); charts.redraw("plan"); } }))));
  charts.add("plan", redraw);
  return { asked };
})();
