// The same from a shell: what was found or done here, as commands to copy.

import { useState } from "preact/hooks";
import { Dialog } from "./controls";
import { Command } from "./show";

export function AsCommand({ of, word = "As a command" }: { of: () => readonly (readonly [string, string])[]; word?: string }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button type="button" class="link" onClick={() => setOpen(true)}>
        {word}
      </button>
      {isOpen && (
        <Dialog title="The same from a shell" close={() => setOpen(false)} wide>
          <dl class="commands">
            {of().map(([name, text]) => (
              <>
                <dt key={name}>{name}</dt>
                <dd>
                  <Command>{text}</Command>
                </dd>
              </>
            ))}
          </dl>
          <p class="hint">
            curl takes the token from <code>$TOKEN</code>: <code>mainspring token create me --role operator</code>
          </p>
        </Dialog>
      )}
    </>
  );
}
