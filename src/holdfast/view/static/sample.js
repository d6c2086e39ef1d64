// The page of a sample: parts that are loaded when they are opened, links to steps of other windows, copying commands.
// No markup is made from text: parts come from documents that the server rendered.
"use strict";

(function () {
  // Regions are replaced while a run is live, so events are handled at the document.
  document.addEventListener("toggle", function (event) {
    const details = event.target;
    if (!(details instanceof HTMLDetailsElement) || !details.open || !details.dataset.load) return;
    const address = details.dataset.load;
    delete details.dataset.load;
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.onload = function () {
      const part = request.response && request.response.getElementById("raw");
      if (request.status !== 200 || !part) {
        details.dataset.load = address;
        return;
      }
      const copy = document.importNode(part, true);
      copy.removeAttribute("id");
      details.append(...copy.childNodes);
    };
    request.onerror = function () { details.dataset.load = address; };
    request.send();
  }, true);

  // A link to a step that another window has.
  const named = /^#step-(\d{1,15})$/.exec(location.hash);
  if (named && !document.getElementById("step-" + named[1])) {
    const address = new URL(location.href);
    if (address.searchParams.get("step") !== named[1]) {
      address.searchParams.set("step", named[1]);
      location.replace(address);
    }
  }

  if (navigator.clipboard) {
    document.querySelectorAll("pre.command").forEach(function (command) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "copy";
      button.addEventListener("click", function () {
        navigator.clipboard.writeText(command.textContent).then(function () {
          button.textContent = "copied";
          setTimeout(function () { button.textContent = "copy"; }, 1500);
        });
      });
      command.after(button);
    });
  }
})();
