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
    const [title, parts, last] = found;
    const wanted = (holdfast.asked().get("step") || "").replace(/#.*/, "");
    const part = parts.find(function (each) { return each.includes('id="step-' + wanted + '"'); });
    document.title = title + " · Holdfast";
    place.replaceChildren(holdfast.build(wanted === "last" ? parts[last] : part || parts[0]));
    const step = document.getElementById("step-" + wanted);
    if (step) step.scrollIntoView();
    else window.scrollTo(0, 0);
  }

  window.addEventListener("hashchange", show);
  show();
})();
