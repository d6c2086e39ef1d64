// A sample in a static copy: shows the one that the address names.
"use strict";

(async function () {
  const place = document.getElementById("bundle-sample");
  const [samples] = await holdfast.unpack();

  function show() {
    const key = holdfast.asked().get("key") || Object.keys(samples)[0];
    const found = Object.prototype.hasOwnProperty.call(samples, key) ? samples[key] : null;
    if (!found) {
      const sentence = document.createElement("p");
      sentence.className = "problem";
      sentence.textContent = "This file of the copy has no sample " + key;
      place.replaceChildren(sentence);
      return;
    }
    document.title = found[0] + " · Holdfast";
    place.replaceChildren(holdfast.build(found[1]));
    const step = document.getElementById("step-" + holdfast.asked().get("step"));
    if (step) step.scrollIntoView();
    else window.scrollTo(0, 0);
  }

  window.addEventListener("hashchange", show);
  show();
})();
