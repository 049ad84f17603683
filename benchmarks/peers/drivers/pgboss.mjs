// pg-boss: batches, fetched again at once while they are full, woken by NOTIFY.
import { PgBoss } from "pg-boss";

import { serve } from "./protocol.mjs";

const BATCH = 1000;
const QUEUE = "stamp";

async function start(address, options = {}) {
  const boss = new PgBoss({ connectionString: address, schedule: false, ...options });
  boss.on("error", (error) => console.error(error.message));
  await boss.start();
  return boss;
}

const options = (at) => (at ? { startAfter: new Date(Math.round(at * 1000)) } : {});

await serve({
  async prepare(address) {
    const boss = await start(address, { supervise: false });
    await boss.createQueue(QUEUE, { notify: true });
    await boss.stop();
  },

  async work(address, _part, starts, closed) {
    const boss = await start(address, { useListenNotify: true });
    const polling = { pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
    await boss.work(QUEUE, { batchSize: BATCH, localConcurrency: 2, ...polling }, async (jobs) => {
      for (const job of jobs) starts.note(job.data.number);
    });
    starts.ready();
    await closed;
    await boss.stop({ graceful: true, timeout: 5000 });
  },

  async producer(address) {
    const boss = await start(address, { supervise: false });
    return {
      one: (number, at) => boss.send(QUEUE, { number }, options(at)),
      many: (numbers, instants) =>
        boss.insert(
          QUEUE,
          numbers.map((number, place) => ({ data: { number }, ...options(instants?.[place]) })),
        ),
      close: () => boss.stop({ graceful: false }),
    };
  },
});
