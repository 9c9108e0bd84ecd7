// Search in pages that are opened from disk: browsers start no Worker there, so a hidden frame takes its place.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "Search";
      this.ready = new Promise((resolve) => { this.resolve = resolve; });
      window.addEventListener("message", (event) => {
        if (event.source === frame.contentWindow) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      (document.body || document.documentElement).appendChild(frame);
      const inner = frame.contentWindow;
      inner.document.open();
      inner.document.write("<!doctype html><html lang=en><head><title>Search</title></head><body></body></html>");
      inner.document.close();
      inner.postMessage = (data) => window.dispatchEvent(
        new MessageEvent("message", { data, source: inner }));
      inner.importScripts = () => Promise.resolve();
      const script = inner.document.createElement("script");
      script.src = url;
      script.onload = () => this.resolve();
      inner.document.body.appendChild(script);
      this.inner = inner;
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
