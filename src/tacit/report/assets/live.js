// The table of the live page: rows come as events; all text is set as text, never as HTML.
"use strict";
(() => {
  const runs = new Map();
  const columns = [
    { key: "run", name: "run" }, { key: "method", name: "method" }, { key: "task", name: "task" },
    { key: "seed", name: "seed", number: true }, { key: "status", name: "status" },
    { key: "rounds", name: "rounds", number: true, text: (row) => (row.planned ? `${row.rounds} of ${row.planned}` : row.rounds) },
    { key: "epsilon", name: "ε", number: true, text: (row) => tacit.number(row.epsilon) + (row.epsilon === null || row.unit === "client" ? "" : ` (${row.unit})`) },
    { key: "up", name: "up", number: true, text: (row) => (row.up === null ? null : tacit.bytes(row.up)) },
    { key: "down", name: "down", number: true, text: (row) => (row.down === null ? null : tacit.bytes(row.down)) },
    { key: "seconds", name: "seconds", number: true, text: (row) => (row.seconds === null ? null : row.seconds.toFixed(1)) },
  ];
  const sort = { key: "run", down: false };
  const place = (id) => document.getElementById(id);
  const badges = { finished: "good", running: "warn", interrupted: "warn", failed: "bad" };
  let chosen = null;
  let complete = false;
  let waiting = false;

  const make = (name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  const metric = (row, key) => (Object.hasOwn(row.metrics, key) ? row.metrics[key] : null); // "constructor" may be one
  const value = (row, column) => (column.metric ? metric(row, column.key) : row[column.key]);

  function shownColumns() {
    const metrics = new Set();
    for (const row of runs.values()) for (const name of Object.keys(row.metrics)) metrics.add(name);
    const found = [...metrics].slice(0, 4).map((key) => (
      { key, name: key.replaceAll("_", " "), number: true, metric: true, text: (row) => tacit.number(metric(row, key)) }));
    return [...columns.slice(0, 6), ...found, ...columns.slice(6)];
  }

  function head(shown) {
    const wanted = shown.map((column) => column.key + (column.metric ? " " : "")).join("\n");
    const row = place("columns");
    if (row.dataset.columns !== wanted) {
      row.dataset.columns = wanted;
      row.replaceChildren(...shown.map((column) => {
        const cell = make("th", undefined, column.number ? "number" : "");
        cell.scope = "col";
        cell.dataset.key = column.key;
        const button = make("button", column.name);
        button.type = "button";
        button.addEventListener("click", () => {
          sort.down = sort.key === column.key ? !sort.down : Boolean(column.number);
          sort.key = column.key;
          draw();
        });
        cell.append(button);
        return cell;
      }));
    }
    for (const cell of row.children) {
      if (cell.dataset.key === sort.key) cell.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  function compare(one, two, column) {
    const [a, b] = [value(one, column), value(two, column)];
    const missing = (x) => x === null || x === undefined;
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const order = column.number ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
    return (sort.down ? -order : order) || String(one.run).localeCompare(String(two.run), undefined, { numeric: true });
  }

  function cells(row, shown) {
    return shown.map((column) => {
      if (column.key === "run") {
        const cell = make("td");
        const button = make("button", row.run, "open");
        button.type = "button";
        button.addEventListener("click", () => choose(row.run));
        cell.append(button);
        return cell;
      }
      if (column.key === "status") {
        const cell = make("td");
        cell.append(make("span", row.problem ? "unreadable" : row.status, `badge ${row.problem ? "bad" : badges[row.status] || ""}`));
        if (row.problem) cell.title = row.problem;
        return cell;
      }
      const text = column.text ? column.text(row) : value(row, column);
      return make("td", text === null || text === undefined ? "–" : text, column.number ? "number" : "");
    });
  }

  function draw() {
    waiting = false;
    const shown = shownColumns();
    head(shown);
    const words = place("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const column = shown.find((each) => each.key === sort.key) || shown[0];
    const text = (row) => `${row.run} ${row.method} ${row.task} ${row.status} seed ${row.seed}`.toLowerCase();
    const rows = [...runs.values()].filter((row) => words.every((word) => text(row).includes(word)));
    rows.sort((one, two) => compare(one, two, column));
    const focused = document.activeElement?.classList.contains("open") ? document.activeElement.textContent : null;
    place("rows").replaceChildren(...rows.map((row) => {
      const line = make("tr", undefined, row.run === chosen ? "chosen" : "");
      line.append(...cells(row, shown));
      return line;
    }));
    if (focused !== null) [...document.querySelectorAll("button.open")].find((each) => each.textContent === focused)?.focus();
    const running = rows.filter((row) => row.status === "running").length;
    const reading = complete ? "" : " Reading…";
    place("state").textContent = runs.size ? `${rows.length} of ${runs.size} runs, ${running} running.${reading}` : (complete ? "No runs yet." : "Reading…");
  }

  const soon = () => { if (!waiting) { waiting = true; requestAnimationFrame(draw); } };

  function figure(title) {
    const made = make("figure", undefined, "chart");
    const plot = make("div", undefined, "plot");
    plot.setAttribute("role", "img");
    made.append(make("figcaption", title), make("p", "", "readout"), plot);
    return made;
  }

  async function choose(name) {
    chosen = name;
    soon();
    await update();
    place("chosen").scrollIntoView({ behavior: "smooth", block: "nearest" });
  }

  async function update() {
    const name = chosen;
    const answer = await fetch(`charts?run=${encodeURIComponent(name)}`);
    if (!answer.ok || name !== chosen) return;
    const charts = await answer.json();
    const section = place("chosen");
    if (section.dataset.run !== name || section.querySelectorAll("figure").length !== charts.length) {
      section.dataset.run = name;
      const link = make("a", "Report of this run");
      link.href = `report?run=${encodeURIComponent(name)}`;
      const grid = make("div", undefined, "charts");
      grid.append(...charts.map((chart) => figure(chart.title)));
      const line = make("p");
      line.append(link);
      section.replaceChildren(make("h2", name), line, charts.length ? grid : make("p", "No round is complete yet."));
    }
    const figures = section.querySelectorAll("figure");
    charts.forEach((chart, i) => {
      tacit.chart(figures[i], chart);
      figures[i].querySelector(".plot").setAttribute("aria-label", `Chart of ${chart.title}. ${figures[i].querySelector(".readout").textContent}`);
    });
  }

  function receive(event) {
    const news = JSON.parse(event.data);
    const known = new Set(news.names);
    for (const name of runs.keys()) if (!known.has(name)) runs.delete(name);
    for (const [name, row] of Object.entries(news.runs)) runs.set(name, row);
    complete = news.complete;
    soon();
    if (chosen !== null && Object.hasOwn(news.runs, chosen)) update();
  }

  place("filter").addEventListener("input", soon);
  const source = new EventSource("events");
  source.addEventListener("message", receive);
  source.addEventListener("open", () => runs.clear());
  source.addEventListener("error", () => { place("state").textContent = "The connection to tacit watch is lost. Waiting for it…"; });
  draw();
})();
