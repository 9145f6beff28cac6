// What a reader can do with a report page: hover, zoom, switch lines and axes, download.
// The charts are in the page already, drawn by charts/lines.py; this draws them again by the same
// rules, from the whole data that the page holds compressed. Without it the page stays readable.
"use strict";
(async () => {
  const MOST = 400, TOP = 12, BOTTOM = 44, LEFT = 58, HEIGHT = 316, LABELLED = 8, APART = 15;
  const FAR = 10, FAR_LOG = 2, OUTSIDE = 1000; // as in charts/lines.py
  const holder = document.getElementById("data");
  if (!holder || typeof DecompressionStream === "undefined") return;
  const data = await opened(holder.textContent);
  const view = { x: data.first, log: data.log, hidden: new Set() };
  const charts = [...document.querySelectorAll("figure[data-y]")].map(chart);
  const all = () => charts.forEach((one) => one.draw());
  const parts = { ".controls": controls, ".legend": legend, "[data-download]": download };
  for (const [which, does] of Object.entries(parts)) document.querySelectorAll(which).forEach(does);
  addEventListener("resize", all);
  addEventListener("beforeprint", () => charts.forEach((one) => one.draw(720)));
  addEventListener("afterprint", all);
  all();
  document.documentElement.dataset.ready = "yes";

  async function opened(text) {
    const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  // -- numbers and axes, as in charts/scales.py

  function scale(low, high, start, end, log) {
    const f = log ? Math.log10 : (v) => v;
    const span = f(high) - f(low) || 1;
    const at = (v) => start + ((end - start) * (f(v) - f(low))) / span;
    at.back = (p) => {
      const v = f(low) + ((p - start) / (end - start)) * span;
      return log ? 10 ** v : v;
    };
    at.ticks = (most) => (log && high / low >= 8 ? logTicks(low, high, most) : evenTicks(low, high, most));
    return at;
  }

  function evenTicks(low, high, most) {
    const raw = (high - low) / most;
    if (!(raw > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * (1 - 1e-9));
    const ticks = [];
    for (let j = Math.ceil(low / step - 1e-9); j <= Math.floor(high / step + 1e-9); j++) {
      ticks.push(Number((j * step).toPrecision(12)));
    }
    return ticks;
  }

  function logTicks(low, high, most) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const every = Math.max(1, Math.ceil((last - first + 1) / most));
    const tens = [], finer = [];
    for (let e = first; e <= last; e += every) tens.push(Number(`1e${e}`));
    if (tens.length > 2) return tens;
    for (let e = Math.floor(Math.log10(low)); e <= last; e++) {
      for (const m of [1, 2, 5]) finer.push(Number(`${m}e${e}`));
    }
    return finer.filter((t) => t >= low * (1 - 1e-9) && t <= high * (1 + 1e-9));
  }

  function short(value) {
    const size = Math.abs(value);
    if ((size > 0 && size < 1e-3) || size >= 1e15) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    for (const [least, by, letter] of [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]]) {
      if (size >= least) return Number((value / by).toPrecision(4)) + letter;
    }
    return String(Number(value.toPrecision(4)));
  }

  function axisEnds(values, log) {
    let low = Infinity, high = -Infinity;
    for (const v of values) {
      if (v !== null && v !== undefined && (v > 0 || !log)) {
        low = Math.min(low, v);
        high = Math.max(high, v);
      }
    }
    if (low > high) return log ? [1, 10] : [0, 1];
    if (log) {
      const room = high > low ? (high / low) ** 0.05 : 1.5;
      return [low / room, high * room];
    }
    const room = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  }

  function drawable(v, log) {
    return v !== null && v !== undefined && (v > 0 || !log);
  }

  // The values that the vertical axis follows: followed_values in charts/lines.py.
  function followed(rows, log, better) {
    const calm = rows.filter((row) => !row.diverged), counted = calm.length ? calm : rows;
    const known = counted.map((row) => row.values.filter((v) => drawable(v, log))).filter((own) => own.length);
    const values = known.flat(), sign = better === "low" ? 1 : -1;
    if (!better || !values.length) return values;
    const badness = (v) => sign * (log ? Math.log10(v) : v), most = (own) => own.reduce((a, v) => Math.max(a, badness(v)), -Infinity);
    const best = values.reduce((a, v) => Math.min(a, badness(v)), Infinity);
    const usual = known.map(most).sort((a, b) => a - b)[(known.length - 1) >> 1];
    const room = log ? FAR_LOG * Math.max(usual - best, 1) : FAR * Math.max(usual - best, Math.abs(usual) / 2);
    return values.filter((v) => badness(v) <= usual + room);
  }

  function thinned(points, most) {
    if (points.length <= most) return points;
    const low = points[0][0], span = points[points.length - 1][0] - low || 1, count = most / 2;
    const pieces = new Map();
    points.forEach(([at, y], j) => {
      const piece = Math.min(count - 1, Math.floor((count * (at - low)) / span));
      const known = pieces.get(piece);
      if (!known) pieces.set(piece, [j, j]);
      else if (y < points[known[0]][1]) known[0] = j;
      else if (y > points[known[1]][1]) known[1] = j;
    });
    const kept = new Set([...pieces.values()].flat());
    return points.filter((_, j) => kept.has(j));
  }

  function spreadLabels(places) {
    const moved = [];
    for (const place of places) moved.push(moved.length ? Math.max(place, moved[moved.length - 1] + APART) : place);
    let lowest = HEIGHT - BOTTOM - 4;
    for (let j = moved.length - 1; j >= 0; j--) {
      moved[j] = Math.min(moved[j], lowest);
      lowest = moved[j] - APART;
    }
    return moved;
  }

  function path(points) {
    return points.length ? "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L") : "";
  }

  function escaped(text) {
    return text.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
  }

  function dashed(one) {
    return one.dash ? ` stroke-dasharray="${one.dash}"` : "";
  }

  function look(one) {
    return `class="series" data-key="${one.key}" style="${one.ink}"`;
  }

  // -- one chart

  function chart(figure) {
    const svg = figure.querySelector("svg"), y = figure.dataset.y;
    const tip = make(figure, "div", { class: "tip", hidden: "" });
    const live = make(figure, "p", { class: "unseen", role: "status" });
    let range = null, width = 720, right = 0, at = null, drag = null, X = null, Y = null, yLog = false, target = null;
    const self = { draw, range: () => range };
    buttons();
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("pointermove", moved);
    svg.addEventListener("pointerdown", (event) => {
      drag = { from: place(event), id: event.pointerId };
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointerup", released);
    svg.addEventListener("pointercancel", () => (drag = null));
    svg.addEventListener("pointerleave", () => drag || point(null));
    svg.addEventListener("dblclick", () => zoom(null));
    svg.addEventListener("blur", () => point(null));
    svg.addEventListener("keydown", key);
    return self;

    function shown() {
      return data.series.filter((one) => !view.hidden.has(one.key) && one.x[view.x] && one.y[y]);
    }

    function inside(one) {
      const [low, high] = range || ends();
      const xs = one.x[view.x];
      let first = xs.findIndex((v) => v >= low), last = xs.length - 1;
      if (first < 0) first = xs.length;
      while (last >= 0 && xs[last] > high) last--;
      return [Math.max(0, first - 1), Math.min(xs.length - 1, last + 1)];
    }

    function ends() {
      const values = shown().flatMap((one) => [one.x[view.x][0], one.x[view.x][one.x[view.x].length - 1]]);
      const known = values.filter((v) => v > 0 || !view.log);
      if (!known.length) return view.log ? [1, 10] : [0, 1];
      const low = Math.min(...known), high = Math.max(...known);
      if (high > low) return [low, high];
      return view.log ? [low / 3, 3 * low] : [low - 1, low + 1];
    }

    function draw(wanted) {
      yLog = figure.dataset.log === "yes";
      target = figure.dataset.target ? Number(figure.dataset.target) : null;
      width = wanted || Math.max(280, Math.round(svg.getBoundingClientRect().width));
      const lines = shown(), labelled = width >= 560 && lines.length <= LABELLED;
      right = labelled ? 132 : 14;
      const [low, high] = range || ends(), goal = target === null || range ? [] : [target];
      const rows = lines.map((one) => {
        const [a, b] = inside(one), bands = [one.y[y], one.low[y] || [], one.high[y] || []];
        return { diverged: one.diverged, values: bands.flatMap((row) => row.slice(a, b + 1)) };
      });
      const values = [...goal, ...followed(rows, yLog, figure.dataset.better)];
      X = scale(low, high, LEFT, width - right, view.log);
      Y = scale(...axisEnds(values, yLog), HEIGHT - BOTTOM, TOP, yLog);
      svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      const clip = `clip-${figure.id}`, inner = width - right - LEFT;
      const bounds = `<clipPath id="${clip}"><rect x="${LEFT - 4}" y="${TOP - 8}" width="${inner + 8}" height="${HEIGHT - TOP - BOTTOM + 8}"/></clipPath>`;
      const aim = target === null ? "" : `<path class="target" d="M${LEFT} ${Y(target).toFixed(1)}H${width - right}"/>`;
      svg.innerHTML = `${bounds}${axes()}<g clip-path="url(#${clip})">${aim}</g>${lines.map((one) => line(one, clip)).join("")}` +
        (labelled ? labels(lines) : "") + '<g class="pointer"></g>';
      point(null);
    }

    function axes() {
      const parts = [];
      for (const tick of Y.ticks(6)) {
        parts.push(`<path class="grid" d="M${LEFT} ${Y(tick).toFixed(1)}H${width - right}"/>`, text(LEFT - 6, Y(tick) + 4, short(tick), "end"));
      }
      for (const tick of X.ticks(width < 480 ? 4 : 6)) {
        parts.push(`<path class="grid" d="M${X(tick).toFixed(1)} ${HEIGHT - BOTTOM}v4"/>`, text(X(tick), HEIGHT - BOTTOM + 17, short(tick), "middle"));
      }
      parts.push(`<path class="axis" d="M${LEFT} ${HEIGHT - BOTTOM}H${width - right}"/>`);
      parts.push(text((LEFT + width - right) / 2, HEIGHT - 10, data.axes[view.x], "middle", "name"));
      return parts.join("");
    }

    function text(x, y, words, anchor, kind) {
      return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" text-anchor="${anchor}" class="${kind || ""}">${escaped(words)}</text>`;
    }

    function pixel(v) {
      return Math.min(HEIGHT - BOTTOM + OUTSIDE, Math.max(TOP - OUTSIDE, Y(v)));
    }

    function line(one, clip) {
      const [a, b] = inside(one), xs = one.x[view.x], points = [], upper = [], lower = [];
      const low = one.low[y] || [], high = one.high[y] || [];
      for (let j = a; j <= b; j++) {
        if (view.log && !(xs[j] > 0)) continue;
        if (drawable(one.y[y][j], yLog)) points.push([X(xs[j]), pixel(one.y[y][j])]);
        if (drawable(high[j], yLog)) upper.push([X(xs[j]), pixel(high[j])]);
        if (drawable(low[j], yLog)) lower.push([X(xs[j]), pixel(low[j])]);
      }
      const edge = [...thinned(upper, MOST / 2), ...thinned(lower, MOST / 2).reverse()];
      const band = upper.length > 1 && lower.length > 1 ? `<path class="band" d="${path(edge)}Z"/>` : "";
      const alone = points.length === 1 ? `<circle class="dot" cx="${points[0][0]}" cy="${points[0][1]}" r="3"/>` : "";
      return `<g ${look(one)}><g clip-path="url(#${clip})">${band}` +
        `<path class="line"${dashed(one)} d="${path(thinned(points, MOST))}"/>${alone}</g>${end(one, points)}</g>`;
    }

    // An arrow where a line first leaves the axis, a cross where one diverged inside.
    function end(one, points) {
      let before = null;
      for (let [px, py] of points) {
        const edge = Math.min(HEIGHT - BOTTOM, Math.max(TOP, py));
        if (edge !== py) {
          if (before) px = before[0] + ((px - before[0]) * (edge - before[1])) / (py - before[1]);
          if (px >= LEFT - 1 && px <= width - right + 1) return `<path class="dot leaves" d="M${(px - 5).toFixed(1)} ${edge.toFixed(1)}h10l-5 ${edge === TOP ? -7 : 7}z"/>`;
        }
        before = [px, py];
      }
      if (!one.diverged || !before || before[0] > width - right + 1) return "";
      return `<path class="gone" d="M${(before[0] - 4).toFixed(1)} ${(before[1] - 4).toFixed(1)}l8 8m0 -8l-8 8"/>`;
    }

    function labels(lines) {
      const ended = [];
      for (const one of lines) {
        const [a, b] = inside(one);
        for (let j = b; j >= a; j--) {
          const v = one.y[y][j];
          if (v !== null && (v > 0 || !yLog)) {
            ended.push([Math.min(HEIGHT - BOTTOM, Math.max(TOP, Y(v))), one]);
            break;
          }
        }
      }
      ended.sort((a, b) => a[0] - b[0]);
      const places = spreadLabels(ended.map(([at]) => at));
      return ended.map(([, one], j) => {
        const name = one.label.length <= 17 ? one.label : one.label.slice(0, 16) + "…";
        const left = width - right + 6;
        return `<g ${look(one)}><path class="line"${dashed(one)} d="M${left} ${places[j].toFixed(1)}h18"/>${text(left + 22, places[j] + 4, name, "start")}</g>`;
      }).join("");
    }

    // -- the pointer, by mouse, finger or keyboard

    function place(event) {
      const box = svg.getBoundingClientRect();
      return Math.min(width - right, Math.max(LEFT, ((event.clientX - box.left) * width) / box.width));
    }

    function moved(event) {
      if (drag && Math.abs(place(event) - drag.from) > 4) {
        const [a, b] = [drag.from, place(event)].sort((p, q) => p - q);
        svg.querySelector(".pointer").innerHTML = `<rect class="brush" x="${a}" y="${TOP}" width="${b - a}" height="${HEIGHT - TOP - BOTTOM}"/>`;
        tip.hidden = true;
      } else point(X.back(place(event)));
    }

    function released(event) {
      const from = drag && drag.from, to = place(event);
      drag = null;
      if (from !== null && Math.abs(to - from) > 12) zoom([from, to].sort((p, q) => p - q).map(X.back));
    }

    function point(value) {
      at = value;
      const pointer = svg.querySelector(".pointer");
      if (!pointer) return;
      const found = value === null ? [] : shown().map((one) => [one, nearest(one, value)]).filter(([, j]) => j !== null);
      tip.hidden = !found.length;
      if (!found.length) return void (pointer.innerHTML = "");
      const rows = found.map(([one, j]) => [one, j, one.y[y][j]]).filter(([, , v]) => v !== null);
      const px = X(value);
      pointer.innerHTML = `<path class="hair" d="M${px.toFixed(1)} ${TOP}V${HEIGHT - BOTTOM}"/>` +
        rows.map(([one, j, v]) => `<circle ${look(one)} cx="${X(one.x[view.x][j]).toFixed(1)}" cy="${Math.min(HEIGHT - BOTTOM, Math.max(TOP, Y(v))).toFixed(1)}" r="4"/>`).join("");
      rows.sort((a, b) => b[2] - a[2]);
      tip.innerHTML = `<b>${escaped(data.axes[view.x])} ${short(value)}</b>` +
        rows.map(([one, , v]) => `<span ${look(one)}><i></i>${escaped(one.label)} <b>${short(v)}</b></span>`).join("");
      const box = svg.getBoundingClientRect(), ratio = box.width / width;
      const beside = px < width / 2 ? px * ratio + 14 : px * ratio - tip.offsetWidth - 14;
      tip.style.left = `${Math.max(0, Math.min(box.width - tip.offsetWidth, beside))}px`;
      return rows;
    }

    function nearest(one, value) {
      const xs = one.x[view.x];
      if (value > xs[xs.length - 1] * (1 + 1e-9) || value < xs[0] * (1 - 1e-9)) return null;
      let a = 0, b = xs.length - 1;
      while (b - a > 1) {
        const middle = (a + b) >> 1;
        if (xs[middle] <= value) a = middle;
        else b = middle;
      }
      return Math.abs(xs[a] - value) <= Math.abs(xs[b] - value) ? a : b;
    }

    function key(event) {
      const [low, high] = range || ends(), step = (width - right - LEFT) / 50;
      const from = at === null ? LEFT : X(at), clamp = (p) => X.back(Math.min(width - right, Math.max(LEFT, p)));
      const moves = { ArrowRight: () => clamp(from + step), ArrowLeft: () => clamp(from - step), Home: () => low, End: () => high };
      if (moves[event.key]) {
        const rows = point(moves[event.key]()) || [];
        live.textContent = `${data.axes[view.x]} ${short(at)}: ` + rows.map(([one, , v]) => `${one.label} ${short(v)}`).join(", ");
      } else if (event.key === "+" || event.key === "=") closer(0.5);
      else if (event.key === "-") closer(2);
      else if (event.key === "0" || event.key === "Escape") zoom(null);
      else return;
      event.preventDefault();
    }

    function closer(factor) {
      const middle = at === null ? (LEFT + width - right) / 2 : X(at), half = ((width - right - LEFT) / 2) * factor;
      const [least, most] = ends(), wanted = [X.back(middle - half), X.back(middle + half)];
      const next = [Math.max(least, wanted[0]), Math.min(most, wanted[1])];
      zoom(factor > 1 && next[0] <= least && next[1] >= most ? null : next);
    }

    function zoom(wanted) {
      range = wanted && wanted[1] > wanted[0] ? wanted : null;
      draw();
      const [low, high] = range || ends();
      live.textContent = range ? `${data.axes[view.x]} from ${short(low)} to ${short(high)}` : "everything is shown";
      figure.dataset.zoomed = range ? "yes" : "no";
    }

    function buttons() {
      const bar = make(figure, "div", { class: "zoom" });
      svg.before(bar);
      const does = { "+": ["Zoom in", () => closer(0.5)], "−": ["Zoom out", () => closer(2)], all: ["Show everything", () => zoom(null)] };
      for (const [word, [name, act]] of Object.entries(does)) {
        const button = make(bar, "button", { type: "button", "aria-label": `${name}: ${y}`, title: name });
        button.textContent = word;
        button.addEventListener("click", act);
      }
      self.reset = () => (range = null);
    }
  }

  // -- what all charts share

  function make(parent, tag, attributes) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    parent.append(made);
    return made;
  }

  function controls(bar) {
    bar.hidden = false;
    const axis = bar.querySelector("select"), log = bar.querySelector("input");
    const show = () => {
      axis.value = view.x;
      log.checked = view.log;
    };
    show();
    // A browser that returns to a page restores the form after this script has run.
    addEventListener("pageshow", show);
    bar.addEventListener("change", () => {
      view.x = axis.value;
      view.log = log.checked;
      charts.forEach((one) => one.reset());
      all();
    });
  }

  function legend(list) {
    for (const item of list.querySelectorAll("li[data-key]")) {
      const shown = String(!view.hidden.has(item.dataset.key));
      const button = make(item, "button", { type: "button", "aria-pressed": shown });
      button.append(...[...item.childNodes].filter((node) => node !== button));
      button.title = "Show or hide";
      button.addEventListener("click", () => {
        const key = item.dataset.key;
        if (!view.hidden.delete(key)) view.hidden.add(key);
        for (const same of document.querySelectorAll(`li[data-key="${key}"] button`)) {
          same.setAttribute("aria-pressed", String(!view.hidden.has(key)));
        }
        all();
      });
    }
  }

  function download(link) {
    const kind = link.dataset.download;
    link.hidden = false;
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const made = make(document.body, "a", { download: `${data.name}.${kind}`, hidden: "" });
      const content = kind === "csv" ? csv() : JSON.stringify(data, null, 1);
      made.href = URL.createObjectURL(new Blob([content], { type: kind === "csv" ? "text/csv" : "application/json" }));
      made.click();
      made.remove();
    });
  }

  function csv() {
    const names = (part) => [...new Set(data.series.flatMap((one) => Object.keys(one[part])))];
    const xs = names("x"), ys = names("y"), quoted = (text) => `"${text.replaceAll('"', '""')}"`;
    const lines = [["folder", "algorithm", ...xs, ...ys].map(quoted).join(",")];
    for (const one of data.series) {
      one.x.rounds.forEach((_, j) => {
        const cell = (part) => (name) => (one[part][name] ? one[part][name][j] ?? "" : "");
        lines.push([quoted(one.folder), quoted(one.label), ...xs.map(cell("x")), ...ys.map(cell("y"))].join(","));
      });
    }
    return lines.join("\n") + "\n";
  }
})();
