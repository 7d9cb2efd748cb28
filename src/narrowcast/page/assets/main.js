// What the controls do; the first drawing; and, where the page is served, following the runs.
(() => {
  const metrics = () => {
    const found = new Set(state.page.runs.map((run) => run.metric));
    for (const run of state.page.runs) for (const name of Object.keys(run.curves)) found.add(name);
    return [...found];
  };
  const known = (axis) => state.page.runs.some((run) => Object.values(run.curves).some((curve) => curve[axis]));

  const offered = () => [...metrics(), known("network")].join();

  /** A row of radio buttons; the first is chosen unless one was. */
  function radios(name, legend, options, redraw) {
    const before = document.querySelector(`input[name="${name}"]:checked`)?.value;
    const chosen = options.some(([value]) => value === before) ? before : options[0]?.[0];
    document.getElementById(name).replaceChildren(element("legend", {}, legend), ...options.map(([value, label]) =>
      element("label", {}, element("input", { type: "radio", name, value, checked: value === chosen, onchange: redraw }), label)));
  }

  function controls() {
    const axes = ["bytes", "network", "seconds", "round"].filter((axis) => axis !== "network" || known(axis));
    const named = { bytes: "bytes", network: "time on the network", seconds: "time here", round: "round" };
    const options = axes.map((axis) => [axis, named[axis]]);
    const measured = metrics().filter((name) => name !== "training loss").map((name) => [name, name]);
    radios("frontier-x", "against", options.filter(([axis]) => axis !== "round"), () => charts.redraw("frontier"));
    radios("frontier-y", "what", measured, () => charts.redraw("frontier"));
    radios("curves-x", "by", [...options].reverse(), () => charts.redraw("curves"));
    radios("curves-y", "what", [...measured, ["training loss", "training loss"]], () => charts.redraw("curves"));
    radios("kinds-x", "as", [["share", "shares"], ["bytes", "bytes"]], () => charts.redraw("kinds"));
  }

  function redraw() {
    tables.redraw();
    charts.redraw();
  }

  const theme = document.getElementById("theme");
  function say() {
    theme.textContent = state.dark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", `use the ${state.dark() ? "light" : "dark"} colours`);
  }
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = state.dark() ? "light" : "dark";
    say();
    state.restyled();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { say(); state.restyled(); });

  async function follow() {
    const status = document.getElementById("live");
    let tag = "";
    for (;;) {
      try {
        const answer = await fetch("data.json", { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
        if (answer.status === 200) {
          tag = answer.headers.get("ETag") ?? "";
          const fresh = await answer.json();
          state.page.caption = fresh.caption;
          const before = offered();
          state.page.runs = fresh.runs;
          if (offered() !== before) controls();
          state.replace(fresh.runs);
          document.getElementById("problems").replaceChildren(...fresh.problems.map((text) => element("li", {}, text)));
        } else if (answer.status !== 304) throw new Error(`the server says ${answer.status}`);
        status.textContent = "following the runs";
      } catch (error) {
        status.textContent = `not following any more: ${error.message}`;
      }
      await new Promise((resume) => setTimeout(resume, state.page.live));
    }
  }

  controls();
  say();
  state.on(redraw);
  redraw();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    document.documentElement.dataset.drawn = String(Math.round(performance.now())); // the first pictures are there
  }));
  if (state.page.live) follow();
})();
