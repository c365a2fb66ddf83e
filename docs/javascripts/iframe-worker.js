// Runs Material's search worker in an iframe when pages are opened as files, because browsers refuse `new Worker` there.
// It replaces https://unpkg.com/iframe-worker, which the offline plugin would otherwise load from the network.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.scope.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(each)));
      this.ready = this.load(url);
    }

    load(url) {
      const script = this.scope.document.createElement("script");
      script.src = url;
      this.scope.document.body.append(script);
      return new Promise((resolve, reject) => Object.assign(script, { onload: resolve, onerror: reject }));
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.scope.frameElement.remove();
    }
  };
}
