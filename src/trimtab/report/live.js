// A page that a command is still writing (--live) reloads itself from disk; its last page has no such script.
// It waits while the reader moves the pointer, scrolls or types, so that no zoom or hover is lost meanwhile.
"use strict";
(() => {
  const EVERY = 2000, IDLE = 5000; // milliseconds
  let touched = -IDLE;
  for (const kind of ["pointermove", "wheel", "keydown"]) {
    addEventListener(kind, () => (touched = performance.now()), { passive: true });
  }
  setInterval(() => {
    if (!document.hidden && performance.now() - touched >= IDLE) location.reload();
  }, EVERY);
})();
