// What a served page does besides: it listens for newer pages, and changes what is different.
// Lines that are switched off, tables that are opened, zooms and the pointer stay as they are.
"use strict";
(() => {
  const main = document.querySelector("main"), given = new WeakMap();
  remember(main);
  const source = new EventSource(document.body.dataset.live);
  source.addEventListener("page", (event) => show(new DOMParser().parseFromString(JSON.parse(event.data), "text/html")));
  source.addEventListener("end", () => {
    source.close();
    say("Not live any more: it was stopped. This is the last that was told.");
  });
  source.addEventListener("error", () => say("Not live any more: nobody answers. This is the last that was told."));

  function say(sentence) {
    const note = main.querySelector(".live");
    if (note && !note.dataset.over) note.textContent = sentence;
  }

  function show(fresh) {
    document.title = fresh.title;
    update(main, fresh.querySelector("main"));
    const data = fresh.getElementById("data");
    if (data) document.dispatchEvent(new CustomEvent("trimtab-data", { detail: data.textContent }));
  }

  function remember(parent) {
    for (const child of parent.children) {
      given.set(child, child.outerHTML);
      if (child.tagName === "SECTION") remember(child);
    }
  }

  function keyed(parent) {
    const found = new Map(), seen = new Map();
    for (const child of parent.children) {
      const head = child.tagName === "SECTION" ? child.querySelector("h2")?.textContent : child.className;
      const name = `${child.tagName} ${child.id || head || ""}`, nth = seen.get(name) || 0;
      seen.set(name, nth + 1);
      found.set(`${name} ${nth}`, child);
    }
    return found;
  }

  function update(parent, fresh) {
    const old = keyed(parent);
    let place = parent.firstElementChild;
    for (const [key, wanted] of keyed(fresh)) {
      let child = old.get(key);
      old.delete(key);
      if (!child) {
        child = document.importNode(wanted, true);
        if (child.tagName === "SECTION") remember(child);
      } else if (given.get(child) !== wanted.outerHTML) child = changed(child, wanted);
      given.set(child, wanted.outerHTML);
      if (place && !place.isConnected) place = child; // it was replaced just now
      if (child === place) place = place.nextElementSibling;
      else parent.insertBefore(child, place);
    }
    for (const child of old.values()) child.remove();
  }

  function changed(child, wanted) {
    if (child.tagName === "SECTION") update(child, wanted);
    else if (child.matches("figure[data-y]")) Object.assign(child.dataset, wanted.dataset);
    else if (child.matches(".legend, .controls")) {
      const fresh = document.importNode(wanted, true);
      child.replaceWith(fresh);
      return fresh;
    } else {
      child.innerHTML = wanted.innerHTML;
      Object.assign(child.dataset, wanted.dataset);
    }
    return child;
  }
})();
