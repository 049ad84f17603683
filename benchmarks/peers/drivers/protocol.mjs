// The protocol of protocol.py for drivers in JavaScript: the same commands, the same lines on the standard output.
import { writeSync } from "node:fs";

const CHUNK = 5000; // tasks in a bulk submission
const LANES = 2; // bulk submissions under way at once
const FLUSH_MS = { throughput: 10 }; // how often starts are reported; elsewhere seldom, not to disturb what is timed
const FLUSH_SELDOM_MS = 250;

// performance.now() is monotonic, Date.now() is CLOCK_REALTIME in whole milliseconds: their distance is read where the latter
// ticks. performance.timeOrigin is not used: a process that was interrupted while it started has it wrong by many milliseconds.
function distance() {
  const found = [];
  for (let turn = 0; turn < 5; turn += 1) {
    const before = Date.now();
    while (Date.now() === before);
    found.push(Date.now() - performance.now());
  }
  return Math.max(...found); // an interruption between the two readings makes it smaller
}

const ORIGIN = distance();
export const now = () => (ORIGIN + performance.now()) / 1000;
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

function say(message) {
  let data = Buffer.from(JSON.stringify(message) + "\n");
  while (data.length) {
    try {
      data = data.subarray(writeSync(1, data));
    } catch (error) {
      if (error.code !== "EAGAIN") throw error; // the reader is behind
    }
  }
}

class Starts {
  #found = [];
  #reported = 0;
  #timer;

  constructor(part) {
    this.interval = FLUSH_MS[part] ?? FLUSH_SELDOM_MS;
  }

  // The first line of every handler.
  note(number) {
    this.#found.push([number, now()]);
  }

  ready() {
    say({ ready: true });
    this.#timer = setInterval(() => this.#report(), this.interval);
  }

  #report() {
    const known = this.#found.length;
    if (known > this.#reported) {
      say({ started: known - this.#reported, at: this.#found[this.#reported][1] });
      this.#reported = known;
    }
  }

  close() {
    clearInterval(this.#timer);
    this.#report();
    say({ starts: this.#found });
  }
}

// Until the standard input is closed.
const closed = () =>
  new Promise((resolve) => {
    process.stdin.on("end", resolve);
    process.stdin.resume();
  });

function instants({ tasks, first, span }) {
  return Array.from({ length: tasks }, (_, number) => first + (span * number) / tasks);
}

async function bulk(producer, order) {
  const times = order.how === "at" ? instants(order) : null;
  let next = 0;
  async function lane() {
    while (next < order.tasks) {
      const start = next;
      next = Math.min(next + CHUNK, order.tasks);
      const numbers = Array.from({ length: next - start }, (_, place) => start + place);
      await producer.many(numbers, times && numbers.map((number) => times[number]));
    }
  }
  await Promise.all(Array.from({ length: LANES }, lane));
}

async function single(producer, order) {
  for (let number = 0; number < order.tasks; number += 1) await producer.one(number);
}

// One now and then; not quite regularly, so that it falls into step with no poller.
async function paced(producer, order) {
  const calls = [];
  for (let number = 0; number < order.tasks; number += 1) {
    calls.push([number, now()]);
    await producer.one(number);
    await sleep(order.every * (0.7 + 0.6 * Math.random()));
  }
  say({ calls });
}

// driver: prepare(address), work(address, part, starts, closed), producer(address) → {one, many, close}
export async function serve(driver) {
  const [role, address, ...rest] = process.argv.slice(2);
  if (role === "prepare") {
    await driver.prepare(address);
  } else if (role === "submit") {
    const order = JSON.parse(rest[0]);
    const producer = await driver.producer(address);
    const began = now();
    await { bulk, at: bulk, single, paced }[order.how](producer, order);
    say({ tasks: order.tasks, seconds: now() - began, ended: now() });
    await producer.close();
  } else {
    const starts = new Starts(rest[0]);
    await driver.work(address, rest[0], starts, closed());
    starts.close();
  }
  process.exit(0);
}
