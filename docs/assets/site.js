// What the theme builds in the browser, for readers without a mouse: what scrolls can be focused, and the buttons of a
// block of code are no landmark.
const SCROLLS = ["pre > code", ".md-typeset__scrollwrap", 'p:has(> img[src*=".svg#only"])']
  .map((each) => `${each}:not([tabindex])`).join();
const mend = () => {
  for (const each of document.querySelectorAll(SCROLLS)) each.tabIndex = 0;
  for (const each of document.querySelectorAll("nav.md-code__nav:not([role])")) each.setAttribute("role", "none");
};
new MutationObserver(mend).observe(document.body, { attributeFilter: ["tabindex"], childList: true, subtree: true });
mend();
