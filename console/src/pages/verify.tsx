import { useState } from "preact/hooks";
import { address, send, useData } from "../api.ts";
import { bytes, plain } from "../format.ts";
import { Icon } from "../parts/icons.tsx";
import { Badge, Card, Notice, Steps } from "../parts/ui.tsx";
import { verify, type Report } from "../proofs.ts";
import { MerklePath } from "./ledger.tsx";

interface Found {
  name: string;
  size: number;
  report?: Report;
  problem?: string;
  proof?: { envelope_id: string; index: number; path: string[]; block: { header: { merkle_root: string; envelope_count: number } } };
}

const FILE_BYTES_MAX = 256 << 20;

export function Verify() {
  const channels = useData<{ channels: string[] }>("/channels");
  const [trust, setTrust] = useState<{ name: string; raw: Uint8Array } | null>(null);
  const [found, setFound] = useState<Found[]>([]);
  const [over, setOver] = useState(false);
  const take = async (files: Iterable<File>) => {
    for (const file of files) {
      const row: Found = { name: file.name, size: file.size };
      try {
        if (file.size > FILE_BYTES_MAX) throw new Error(`the file has more than ${bytes(FILE_BYTES_MAX)}: verify it with ropewalk verify`);
        const raw = new Uint8Array(await file.arrayBuffer());
        const document = raw[0] === 0x7b ? (JSON.parse(new TextDecoder().decode(raw)) as Record<string, unknown>) : null;
        if (document && "block_signers" in document) {
          setTrust({ name: file.name, raw });
          continue;
        }
        row.report = verify(raw, { trust: trust?.raw });
        if (document && "path" in document && "block" in document) row.proof = document as never;
      } catch (error) {
        row.problem = (error as Error).message;
      }
      setFound((old) => [row, ...old].slice(0, 20));
    }
  };
  const believe = async (channel: string) => {
    if (!channel) return setTrust(null);
    const raw = await (await send("GET", address(`/channels/${encodeURIComponent(channel)}/trust`))).arrayBuffer();
    setTrust({ name: `the trust file of ${channel}`, raw: new Uint8Array(raw) });
  };
  return (
    <>
      <div class="head">
        <div>
          <h1>Verify a file</h1>
          <p>Drop a proof, a bundle or a checkpoint. Your browser verifies it; the file is not sent anywhere.</p>
        </div>
        <label class="field">
          Trust
          <select onChange={(event) => void believe(event.currentTarget.value)}>
            <option value="">no keys</option>
            {channels.data?.channels.map((each) => <option value={each}>{plain(each)} of this server</option>)}
          </select>
        </label>
      </div>
      {trust && <Notice kind="info">Signers are judged by <strong>{plain(trust.name)}</strong>.</Notice>}
      <label
        class={`drop${over ? " over" : ""}`}
        onDragOver={(event) => (event.preventDefault(), setOver(true))}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => (event.preventDefault(), setOver(false), void take(event.dataTransfer?.files ?? []))}
      >
        <Icon name="verify" />
        <strong>Drop files here, or choose them</strong>
        <span class="muted">proof.json · bundle.tar.zst · checkpoint · a trust file sets the keys you trust</span>
        <input type="file" multiple class="visually-hidden" onChange={(event) => void take([...(event.currentTarget.files ?? [])])} />
      </label>
      <div aria-live="polite" class="stack">
        {found.map((each) => (
          <Card title={plain(each.name)} note={bytes(each.size)} actions={each.report && <Badge state={each.report.verdict} />}>
            <div class="body stack">
              {each.problem && <Notice kind="bad"><strong>Not verified:</strong> {plain(each.problem)}</Notice>}
              {each.report?.verdict === "untrusted" && <Notice kind="warn">Hashes and signatures fit together, but no key was given that you trust. Choose the trust of a channel, or drop a trust file first.</Notice>}
              {each.report && <Steps steps={each.report.steps} />}
              {each.proof && <MerklePath id={each.proof.envelope_id} proof={each.proof} />}
            </div>
          </Card>
        ))}
      </div>
    </>
  );
}
