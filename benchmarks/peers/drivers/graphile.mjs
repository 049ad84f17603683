// Graphile Worker with the settings of its page on performance: a local queue, ends recorded in batches.
import { Logger, makeWorkerUtils, run } from "graphile-worker";

import { serve } from "./protocol.mjs";

const logger = new Logger(() => (level, message) => level === "error" && console.error(message));
const POLL_INTERVAL_MS = 100; // for jobs with an instant; its default is 2000

const worker = (address) => ({
  connectionString: address,
  concurrentJobs: 24,
  maxPoolSize: 25,
  pollInterval: POLL_INTERVAL_MS,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
  logger,
});

const spec = (number, at) => ({
  identifier: "stamp",
  payload: { number },
  ...(at ? { runAt: new Date(Math.round(at * 1000)) } : {}),
});

await serve({
  async prepare(address) {
    const utils = await makeWorkerUtils({ connectionString: address, logger });
    await utils.migrate();
    await utils.release();
  },

  async work(address, _part, starts, closed) {
    const runner = await run({
      preset: { worker: worker(address) },
      taskList: { stamp: ({ number }) => starts.note(number) },
      noHandleSignals: true,
      crontab: "",
    });
    starts.ready();
    await closed;
    await runner.stop();
  },

  async producer(address) {
    const utils = await makeWorkerUtils({ connectionString: address, logger });
    return {
      one: (number, at) => utils.addJob("stamp", { number }, at ? { runAt: new Date(Math.round(at * 1000)) } : {}),
      many: (numbers, instants) => utils.addJobs(numbers.map((number, place) => spec(number, instants?.[place]))),
      close: () => utils.release(),
    };
  },
});
