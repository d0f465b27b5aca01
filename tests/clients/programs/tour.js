// What a page does with @stomp/stompjs, in a browser and in Node alike. `StompJs` is the library, `WebSocket` a global.
"use strict";

const OWN = "client-individual";

class Visitor {
  #arrived = [];
  #waiting = [];

  constructor(url, options = {}) {
    this.connections = 0;
    this.client = new StompJs.Client({
      brokerURL: url,
      connectHeaders: { login: "guest", passcode: "guest", host: "/" },
      reconnectDelay: 20,
      ...options,
    });
    this.client.onStompError = (frame) => this.put(new Error(frame.headers.message));
  }

  put(item) {
    const waiting = this.#waiting.shift();
    if (waiting) waiting(item);
    else this.#arrived.push(item);
  }

  async take() {
    const item = this.#arrived.length
      ? this.#arrived.shift()
      : await new Promise((resolve) => this.#waiting.push(resolve));
    if (item instanceof Error) throw item;
    return item;
  }

  // Connects, and subscribes anew with each connection.
  start(destination, headers) {
    return new Promise((resolve) => {
      this.client.onConnect = () => {
        this.connections++;
        const receipt = `subscribed-${this.connections}`;
        this.client.watchForReceipt(receipt, resolve);
        this.client.subscribe(destination, (message) => this.put(message), { ...headers, receipt });
      };
      this.client.activate();
    });
  }

  send(destination, body, headers = {}) {
    const how = typeof body === "string" ? { body } : { binaryBody: body };
    this.client.publish({ destination, headers, ...how });
  }
}

function check(condition, what) {
  if (!condition) throw new Error(`not so: ${what}`);
}

async function tour(url, queue) {
  const destination = `/queue/${queue}`;
  const visitor = new Visitor(url);
  await visitor.start(destination, { ack: OWN });

  visitor.send(destination, "grüße, 你好 😀");
  let message = await visitor.take();
  check(message.body === "grüße, 你好 😀", "text");
  message.ack();

  const transaction = visitor.client.begin();
  visitor.send(destination, "never", { transaction: transaction.id });
  transaction.abort();
  const second = visitor.client.begin();
  visitor.send(destination, "committed", { transaction: second.id });
  second.commit();
  message = await visitor.take();
  check(message.body === "committed", "transaction");
  message.nack({ requeue: "true" });
  message = await visitor.take();
  check(message.body === "committed" && message.headers.redelivered === "true", "nack");
  message.ack();

  const large = "0123456789abcdef".repeat(1 << 16);
  visitor.send(destination, large);
  message = await visitor.take();
  check(message.body === large, "a megabyte of text");
  message.ack();

  const bytes = new Uint8Array(1 << 20).map((_, index) => (index * 7) & 255);
  visitor.send(destination, bytes);
  message = await visitor.take();
  check(message.binaryBody.every((byte, index) => byte === bytes[index]), "a megabyte of bytes");
  check(message.binaryBody.length === bytes.length, "all of them");
  message.ack();

  // What was not acknowledged comes again, on another connection.
  visitor.send(destination, "again");
  await visitor.take();
  visitor.client.forceDisconnect();
  message = await visitor.take();
  check(message.body === "again" && visitor.connections === 2, "reconnect");
  message.ack();

  const subprotocol = visitor.client.webSocket.protocol;
  const receipt = new Promise((resolve) => (visitor.client.onDisconnect = () => resolve("confirmed")));
  await visitor.client.deactivate();
  return { subprotocol, disconnect: await receipt };
}

// Many at once: each sends to the next one, once all are there.
async function crowd(url, topic, size) {
  const visitors = Array.from({ length: size }, () => new Visitor(url, { reconnectDelay: 0 }));
  await Promise.all(visitors.map((visitor, number) => visitor.start(`/topic/${topic}.${number}`, {})));
  visitors.forEach((visitor, number) => visitor.send(`/topic/${topic}.${(number + 1) % size}`, String(number)));
  const messages = await Promise.all(visitors.map((visitor) => visitor.take()));
  messages.forEach((message, number) => check(message.body === String((number - 1 + size) % size), "neighbour"));
  await Promise.all(visitors.map((visitor) => visitor.client.deactivate()));
  return messages.length;
}

// Whether a page of this origin, or with these credentials, is let in at all.
function tryToConnect(url) {
  return new Promise((resolve) => {
    const socket = new WebSocket(url, ["v12.stomp"]);
    socket.onopen = () => resolve("open");
    socket.onclose = (event) => resolve(`closed ${event.code}`);
  });
}

if (typeof module !== "undefined") {
  globalThis.StompJs = require("@stomp/stompjs");
  globalThis.WebSocket = require("ws");
  const [url, name, size] = process.argv.slice(2);
  (async () => {
    const seen = await tour(url, name);
    seen.crowd = await crowd(url, name, Number(size));
    console.log(JSON.stringify(seen));
  })().catch((problem) => {
    console.error(problem);
    process.exit(1);
  });
}
