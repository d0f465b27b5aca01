// Carries out the requests of the tests with @stomp/stompjs, one JSON object on each line. See ../README.md.
// The packages are found through NODE_PATH, which only CommonJS looks at.
const { Client, Versions } = require("@stomp/stompjs");
const { TCPWrapper } = require("@stomp/tcp-wrapper");
const readline = require("node:readline");

// What has come and nobody has asked for yet, or who waits for it.
class Inbox {
  #items = [];
  #waiting = [];

  put(item) {
    const waiting = this.#waiting.shift();
    if (waiting) waiting(item);
    else this.#items.push(item);
  }

  take() {
    if (this.#items.length) return Promise.resolve(this.#items.shift());
    return new Promise((resolve) => this.#waiting.push(resolve));
  }
}

const shown = (frame) => ({ headers: frame.headers, body: frame.body });

class Talker {
  messages = new Inbox();
  errors = new Inbox();
  #beats = new Inbox();
  #arrived = new Map(); // by message-id: the library's ack and nack are methods of the message
  #subscriptions = new Map();
  #serial = 0;

  constructor(request) {
    const [host, port] = request.address;
    const [outgoing, incoming] = request.heart_beat;
    const connectHeaders = { login: request.login, passcode: request.passcode };
    if (request.virtual_host !== null) connectHeaders.host = request.virtual_host;
    this.client = new Client({
      webSocketFactory: () => new TCPWrapper(host, port),
      stompVersions: new Versions([request.version]),
      connectHeaders,
      heartbeatOutgoing: outgoing,
      heartbeatIncoming: incoming,
      reconnectDelay: 0,
      onStompError: (frame) => this.errors.put(frame),
      onUnhandledMessage: (message) => this.#message(message), // answers in temporary queues
      onHeartbeatReceived: () => this.#beats.put("beat"),
    });
  }

  #message(message) {
    this.#arrived.set(message.headers["message-id"], message);
    this.messages.put(message);
  }

  connect() {
    const connected = new Promise((resolve) => (this.client.onConnect = (frame) => resolve({ connected: frame.headers })));
    const refused = this.errors.take().then(async (frame) => {
      if (!this.client.connected) await this.client.deactivate();
      return { refused: shown(frame) };
    });
    this.client.activate();
    return Promise.race([connected, refused]).then((seen) => {
      if (seen.connected) this.errors = new Inbox();
      return seen;
    });
  }

  // Gives an action a `receipt` header, and waits for it.
  confirmed(action, headers) {
    const receipt = `r-${++this.#serial}`;
    return new Promise((resolve) => {
      this.client.watchForReceipt(receipt, () => resolve({ receipt: true }));
      action({ ...headers, receipt });
    });
  }

  subscribe({ destination, id, headers }) {
    return this.confirmed((all) => {
      this.#subscriptions.set(id, this.client.subscribe(destination, (message) => this.#message(message), { ...all, id }));
    }, headers);
  }

  unsubscribe({ id, headers }) {
    return this.confirmed((all) => this.#subscriptions.get(id).unsubscribe(all), headers);
  }

  send({ destination, body, headers, unconfirmed }) {
    const publish = (all) => this.client.publish({ destination, body, headers: all });
    if (!unconfirmed) return this.confirmed(publish, headers);
    publish(headers);
    return {};
  }

  async receive() {
    return shown(await this.messages.take());
  }

  async error() {
    return shown(await this.errors.take());
  }

  ack({ message, headers }) {
    return this.confirmed((all) => this.#arrived.get(message["message-id"]).ack(all), headers);
  }

  nack({ message, headers }) {
    return this.confirmed((all) => this.#arrived.get(message["message-id"]).nack(all), headers);
  }

  // The library takes no headers for these.
  begin({ transaction }) {
    this.client.begin(transaction);
    return {};
  }

  commit({ transaction }) {
    this.client.commit(transaction);
    return {};
  }

  abort({ transaction }) {
    this.client.abort(transaction);
    return {};
  }

  async beats({ count }) {
    for (let heard = 0; heard < count; heard++) await this.#beats.take();
    return {};
  }

  async disconnect() {
    const receipt = new Promise((resolve) => (this.client.onDisconnect = () => resolve({ receipt: true })));
    await this.client.deactivate();
    return receipt;
  }
}

const talkers = new Map();

async function answer(request) {
  if (request.do === "connect") {
    const talker = new Talker(request);
    talkers.set(request.connection, talker);
    return talker.connect();
  }
  const talker = talkers.get(request.connection);
  return talker[request.do](request);
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const seen = await answer(JSON.parse(line)).catch((problem) => ({ failed: String(problem) }));
    process.stdout.write(`${JSON.stringify(seen)}\n`);
  }
}

if (process.argv[2] === "version") {
  const version = (name) => require("node:fs").readFileSync(require.resolve(name).replace(/(bundles|index\.js|wrapper\.mjs).*/, "package.json"));
  const shownVersion = (name) => `${name} ${JSON.parse(version(name)).version}`;
  const packages = ["@stomp/stompjs", "@stomp/tcp-wrapper", "ws"].map(shownVersion);
  console.log(`${packages.join(", ")}, Node ${process.version}`);
} else {
  main();
}
