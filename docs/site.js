// What the theme leaves out for readers who use a keyboard or have the screen read to them.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");

// The theme puts wide tables into boxes that scroll; the keyboard must reach them.
function reachable() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) box.tabIndex = 0;
}
reachable();
new MutationObserver(reachable).observe(document.body, { childList: true, subtree: true });
