// Channels: where alerts are sent, whether they arrive, a test message, and a form. A secret is shown once.

import { useState } from "preact/hooks";
import { act, toast } from "../core/actions";
import { call, newKey,  } from "../core/api";
import { useGet } from "../core/query";
import { withQuery } from "../core/router";
import type { ChannelView } from "../core/schema";
import { Action, Confirm,  } from "../parts/controls";
import { Check, FormDialog, Secret, Select, Text } from "../parts/form";
import { Empty, Show } from "../parts/page";
import { Instant, State } from "../parts/show";
import { Table } from "../parts/table";

export function Channels() {
  const channels = useGet("GET /channels", { limit: 200 }, { topics: ["alerts"], every: 10 });
  const [editing, setEditing] = useState<ChannelView | "new" | null>(null);
  const [deleting, setDeleting] = useState<ChannelView | null>(null);
  const send = async (channel: ChannelView) => {
    const { delivery } = await call("POST /channels/{name}/test", { name: channel.name }, undefined, { key: newKey() });
    for (let look = 0; look < 10; look += 1) {
      const sent = await call("GET /deliveries/{id}", { id: delivery });
      if (sent.state === "delivered") {
        channels.refresh();
        return toast({ kind: "done", text: `${channel.name} has taken the test message.` });
      }
      if (sent.last_error) return toast({ kind: "refused", text: `${channel.name} has not taken it: ${sent.last_error}`, detail: "It is tried again; see Messages." });
      await new Promise((done) => setTimeout(done, 500));
    }
    toast({ kind: "told", text: `The test message to ${channel.name} is on its way; see Messages.` });
  };
  return (
    <>
      <div class="table-note">
        <Action needs="admin" run={() => setEditing("new")}>New channel …</Action>
      </div>
      <Show of={channels}>
        {({ items }) => (
          <Table
            label="Channels"
            rows={items}
            id={(channel) => channel.name}
            columns={[
              { name: "Channel", cell: (channel) => <a href={withQuery("alerts", { tab: "messages", channel: channel.name })}>{channel.name}</a> },
              { name: "Health", cell: (channel) => <Health of={channel} /> },
              { name: "Kind", cell: (channel) => `${channel.kind}${channel.is_signed ? ", signed" : ""}`, drop: 2 },
              { name: "Address", cell: (channel) => <code title={channel.url}>{channel.url}</code>, drop: 2 },
              { name: "Last taken", cell: (channel) => <Instant at={channel.delivered_at} relative />, drop: 1 },
              {
                name: "Actions",
                cell: (channel) => (
                  <span class="row-actions">
                    <Action kind="link" needs="operator" run={() => send(channel)} label={`Send test to ${channel.name}`}>Send test</Action>
                    <Action kind="link" needs="admin" run={() => setEditing(channel)} label={`Edit ${channel.name}`}>Edit</Action>
                    <Action kind="link" needs="admin" run={() => setDeleting(channel)} label={`Delete ${channel.name}`}>Delete</Action>
                  </span>
                ),
                align: "right",
              },
            ]}
            empty={
              <Empty title="Nobody is told: there are no channels." command="mainspring channel set ops https://hooks.example/alerts">
                A channel is an address to which alerts are sent: JSON, signed, for a program; or text, for Slack and the like.
              </Empty>
            }
          />
        )}
      </Show>
      {editing && <ChannelForm channel={editing === "new" ? null : editing} close={() => setEditing(null)} done={channels.refresh} />}
      {deleting && (
        <Confirm
          title={`Delete the channel ${deleting.name}`}
          type={deleting.name}
          word="Delete it"
          close={() => setDeleting(null)}
          run={() => act("DELETE /channels/{name}", { params: { name: deleting.name }, how: { ifMatch: deleting.version }, said: () => `Channel ${deleting.name} is gone; what waits for it is not sent.`, then: channels.refresh })}
        >
          <p>What waits for it is not sent.</p>
        </Confirm>
      )}
    </>
  );
}

function Health({ of }: { of: ChannelView }) {
  if (!of.enabled) return <State of="disabled" />;
  if (of.failing_since)
    return (
      <span title={of.last_error ?? ""}>
        <State of="unhealthy" /> <span class="quiet">since <Instant at={of.failing_since} /></span>
      </span>
    );
  return of.delivered_at ? <State of="healthy" /> : <span class="quiet">not used yet</span>;
}

function ChannelForm({ channel, close, done }: { channel: ChannelView | null; close: () => void; done: () => void }) {
  const [name, setName] = useState(channel?.name ?? "");
  const [kind, setKind] = useState<ChannelView["kind"]>(channel?.kind ?? "webhook");
  const [url, setUrl] = useState("");
  const [isOn, setOn] = useState(channel?.enabled ?? true);
  const [secret, setSecret] = useState<string | null>(null);
  const save = async () => {
    const changed = channel
      ? await call("PATCH /channels/{name}", { name }, { kind, enabled: isOn, ...(url ? { url } : {}) }, { ifMatch: channel.version })
      : await call("PUT /channels/{name}", { name }, { kind, url, enabled: isOn }, { ifNew: true });
    done();
    if (changed.secret) setSecret(changed.secret);
    return !changed.secret;
  };
  if (secret) return <Secret title={`The secret of ${name}`} text={secret} note="The receiver checks by it that a message is ours. It is shown this once." close={close} />;
  return (
    <FormDialog title={channel ? `Channel ${channel.name}` : "New channel"} word="Save" needs="admin" refused={!name ? "give it a name" : !channel && !url ? "give an address" : null} run={save} close={close}>
      {(fault) => (
        <>
          <Text label="Name" fault={fault("name")} readOnly={channel !== null} value={name} set={setName} />
          <Select label="Kind" value={kind} set={(kind) => setKind(kind as ChannelView["kind"])} of={[["webhook", "webhook: JSON, signed"], ["slack", "slack: text, for Slack and the like"]]} />
          <Text label="Address" inputMode="url" hint={channel ? `Now ${channel.url}; empty: it stays.` : "An https address that takes a POST; not shown again in full."} fault={fault("url")} value={url} set={setUrl} />
          <Check is={isOn} set={setOn}>told by this channel</Check>
        </>
      )}
    </FormDialog>
  );
}
