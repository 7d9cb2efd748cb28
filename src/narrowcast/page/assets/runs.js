// The table of runs, which is the legend too, and the settings side by side.
const tables = (() => {
  const place = (id) => document.getElementById(id);
  const matches = (run) => {
    const words = place("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = `${run.label} ${run.method} ${run.task} ${run.id} seed ${run.seed}`.toLowerCase();
    return words.every((word) => text.includes(word));
  };

  function swatch(run) {
    const look = state.look(run), made = element("span", { class: "swatch", "aria-hidden": "true" });
    made.style.background = look.colour;
    return made;
  }

  const known = (value, write) => (value === null ? "–" : write(value));

  function row(run, network, epsilon) {
    const box = element("input", {
      type: "checkbox", checked: !state.hidden.has(run.id), "data-run": run.id, "aria-label": `show ${run.label}, seed ${run.seed}`,
      onchange: (event) => state.show([run.id], event.target.checked),
    });
    const rounds = run.complete ? String(run.done) : `${run.done} of ${run.rounds}`;
    const ratio = run.compression ? run.compression.map(units.times).join(" / ") : "–";
    return element("tr", { "data-run": run.id },
      element("th", { scope: "row" }, element("label", {}, box, swatch(run), run.label)),
      ...[
        String(run.seed), known(run.value, units.metric), ...(epsilon ? [known(run.epsilon, (x) => String(Number(x.toPrecision(4))))] : []),
        known(run.up, units.bytes), known(run.down, units.bytes), ratio,
        rounds, known(run.seconds, units.seconds), ...(network ? [known(run.network, units.seconds)] : []), run.state,
      ].map((cell) => element("td", {}, cell)));
  }

  function runs() {
    const focused = document.activeElement?.dataset?.run;
    const network = state.page.runs.some((run) => run.network !== null);
    const epsilon = state.page.runs.some((run) => run.epsilon !== null);
    const metrics = [...new Set(state.page.runs.map((run) => run.metric))].join(" / ");
    const head = ["run", "seed", metrics, ...(epsilon ? ["epsilon"] : []), "up", "down", "fewer bytes up / down / total", "rounds", "time here",
      ...(network ? ["time on the network"] : []), "state"];
    const found = state.page.runs.filter(matches);
    place("runs").replaceChildren(element("table", { class: "numbers" },
      element("caption", {}, state.page.caption),
      element("thead", {}, element("tr", {}, ...head.map((cell) => element("th", { scope: "col" }, cell)))),
      element("tbody", {}, ...found.map((run) => row(run, network, epsilon)))));
    place("count").textContent = `${state.shown().length} of ${state.page.runs.length} runs shown`;
    if (focused) document.querySelector(`input[data-run="${CSS.escape(focused)}"]`)?.focus();
  }

  function settings() {
    const all = state.shown(), only = place("only-differing").checked;
    const names = [...new Set(all.flatMap((run) => Object.keys(run.settings)))];
    const said = (run, name) => (run.settings[name] === undefined ? "–" : String(run.settings[name]));
    const differs = (name) => new Set(all.map((run) => said(run, name))).size > 1;
    const wanted = names.filter((name) => !only || differs(name));
    const made = table("Settings as resolved; what differs between the runs is marked.",
      ["setting", ...all.map((run) => `${run.label}, seed ${run.seed}`)],
      wanted.map((name) => [differs(name) ? `${name} ≠` : name, ...all.map((run) => said(run, name))]), false);
    made.querySelectorAll("tbody tr").forEach((line, i) => {
      if (differs(wanted[i])) line.classList.add("differs");
    });
    place("settings").replaceChildren(made);
  }

  place("filter").addEventListener("input", runs);
  place("only-differing").addEventListener("change", settings);
  place("show-found").addEventListener("click", () => state.show(state.page.runs.filter(matches).map((run) => run.id), true));
  place("hide-found").addEventListener("click", () => state.show(state.page.runs.filter(matches).map((run) => run.id), false));
  return { redraw: () => { runs(); settings(); } };
})();
