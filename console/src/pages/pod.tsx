import { useState } from 'preact/hooks'
import { call, type ApiError, type Schemas } from '../api'
import { duration, moment, size, usd } from '../format'
import { useLive } from '../live'
import { Files } from '../parts/files'
import { Logs } from '../parts/logs'
import { Metrics } from '../parts/metrics'
import { Terminal } from '../parts/terminal'
import { attempt, Badge, Bar, Card, Cli, Copy, Dialog, Facts, Failure, Field, Link, Page, Tabs } from '../ui'
import { Actions, compute, type Pod } from './pods'

const stepNames: Record<string, string> = {
  created: 'host and GPUs reserved', received: 'host told', pulling: 'pull begun', downloaded: 'image downloaded', pulled: 'image unpacked', networked: 'network made',
  defined: 'container made', tasked: 'task made', started: 'process started', reported: 'host reported', recorded: 'recorded',
}

/** Where each millisecond of a start went. */
function Phases({ steps }: { steps: Pod['steps'] }) {
  const order = Object.entries(steps).map(([name, at]) => ({ name, at: Date.parse(at) })).sort((a, b) => a.at - b.at)
  if (order.length < 2) return <p class="dim">The start has not been timed yet.</p>
  const begin = order[0]!.at
  const total = order[order.length - 1]!.at - begin || 1
  return (
    <div class="phases">
      {order.slice(1).flatMap((s, i) => {
        const from = order[i]!.at
        return [
          <span key={s.name}>{stepNames[s.name] ?? s.name}</span>,
          <span key={`${s.name}-track`} class="track"><i style={{ left: `${((from - begin) / total) * 100}%`, width: `${((s.at - from) / total) * 100}%` }} /></span>,
          <span key={`${s.name}-ms`} class="number">{duration(s.at - from)}</span>,
        ]
      })}
      <b>all</b><span /><b class="number">{duration(total)}</b>
    </div>
  )
}

function Ports({ of: p }: { of: Pod }) {
  const [link, set] = useState<{ port: number; url: string; until: string }>()
  if (p.ports.length === 0) return <p class="dim">The pod exposes no ports.</p>
  const http = p.ports.filter((x) => x.endsWith('/http'))
  const kept = (port: number) => p.portSettings?.some((s) => s.port === port && s.access === 'KEY')
  return (
    <>
      <table class="plain"><tbody>{p.ports.map((text) => {
        const port = parseInt(text, 10)
        const url = text.endsWith('/http') ? p.urls[http.indexOf(text)] : undefined
        const live = p.runtime?.ports.find((r) => r.private === port && r.type === 'tcp')
        return (
          <tr key={text}><th scope="row">{text}</th>
            <td>{url && !kept(port) && <a class="under" href={url} target="_blank" rel="noopener noreferrer">{url}</a>}
              {url && kept(port) && <><span>needs a key </span><button type="button" onClick={() => void attempt('A link was made.', async () => {
                const made = await call('get', '/v2/pods/{id}/link', { path: { id: p.id }, query: { port, expiresIn: 3600 } })
                set({ port, url: made.url, until: made.expiresAt })
              })}>Make a link</button></>}
              {link?.port === port && <div><a class="under" href={link.url} target="_blank" rel="noopener noreferrer">Open until {moment(link.until)}</a> <Copy text={link.url} /></div>}
              {live?.public && <code>{live.ip}:{live.public}</code>}
              {!url && !live && <span class="dim">when it runs</span>}
            </td></tr>
        )
      })}</tbody></table>
    </>
  )
}

function Settings({ of: p, close }: { of: Pod; close(): void }) {
  const [name, setName] = useState(p.name)
  const [image, setImage] = useState(p.image)
  const [locked, lock] = useState(p.locked)
  const [env, setEnv] = useState(Object.entries(p.env).map(([k, v]) => `${k}=${v}`).join('\n'))
  const [disk, setDisk] = useState(p.disk)
  return (
    <Dialog title="Change the pod" close={close}>
      <form onSubmit={async (e) => {
        e.preventDefault()
        const body: Schemas['UpdatePodRequest'] = {}
        if (name !== p.name) body.name = name
        if (locked !== p.locked) body.locked = locked
        if (image !== p.image) body.image = image
        if (disk !== p.disk) body.disk = disk
        const vars = variables(env)
        if (JSON.stringify(vars) !== JSON.stringify(p.env)) body.env = vars
        if (await attempt('The pod was changed.', () => call('patch', '/v2/pods/{id}', { path: { id: p.id }, body }))) close()
      }}>
        <Field label="Name"><input value={name} onInput={(e) => setName(e.currentTarget.value)} /></Field>
        <Field label="Image" hint="Another image, environment or disk gives an active pod a new container, whose disk is empty."><input value={image} class="mono" onInput={(e) => setImage(e.currentTarget.value)} /></Field>
        <Field label="Container disk, GB"><input type="number" min={1} value={disk} onInput={(e) => setDisk(e.currentTarget.valueAsNumber)} /></Field>
        <Field label="Environment" hint="One NAME=value a line."><textarea class="code" rows={5} value={env} onInput={(e) => setEnv(e.currentTarget.value)} /></Field>
        <label class="check"><input type="checkbox" checked={locked} onChange={(e) => lock(e.currentTarget.checked)} />Locked: stop and restart are refused</label>
        <footer><button type="button" onClick={close}>Cancel</button><button type="submit" class="primary">Change</button></footer>
      </form>
    </Dialog>
  )
}

/** Lines of NAME=value as an object. */
export function variables(text: string): Record<string, string> {
  return Object.fromEntries(text.split('\n').filter((l) => l.trim()).map((l) => {
    const at = l.indexOf('=')
    return at < 0 ? [l.trim(), ''] : [l.slice(0, at).trim(), l.slice(at + 1)]
  }))
}

function Summary({ of: p }: { of: Pod }) {
  const r = p.runtime
  return (
    <>
      {(p.statusReason || p.condition) && <p class={`note ${p.status === 'ERROR' ? 'bad' : ''}`}>{p.condition?.text ?? p.statusReason}{p.exitCode !== null && p.status !== 'RUNNING' && ` (exit code ${p.exitCode})`}</p>}
      {p.progress && <p class="note">{p.progress.activity}{p.progress.pullTotal > 0 && <> {size(p.progress.pullDone)} of {size(p.progress.pullTotal)} <Bar part={p.progress.pullDone / p.progress.pullTotal} label="Image pulled" /></>}</p>}
      {p.logTail && <Card title="Last lines of its log"><pre>{p.logTail}</pre></Card>}
      <Card>
        <Facts of={[
          ['Compute', compute(p)], ['Cost', `${usd(p.cost)} / h`], ['Image', <code key="i">{p.image}</code>], ['Arguments', p.args && <code key="a">{p.args}</code>], ['Data center', p.dataCenterId], ['Host', p.hostId],
          ['Container disk', `${p.disk} GB`], ['Persistent mount', p.mounts.persistent && `${p.mounts.persistent.size} GB at ${p.mounts.persistent.path}`],
          ['Network volume', p.mounts.network?.map((m) => <Link key={m.volumeId} to={`/volumes/${m.volumeId}`}>{m.volumeId} at {m.path}</Link>)],
          ['Created', moment(p.createdAt)], ['Started', p.startedAt && moment(p.startedAt)], ['Starts', p.incarnation], ['Uptime', r && duration(r.uptime * 1000)],
          ['Interruptible', p.interruptible && `bids ${usd(p.bidPerGpu ?? 0)} per GPU and hour`], ['Private network', p.globalNetworking.enabled && (p.globalNetworking.internalDns ?? 'yes')],
          ['Locked', p.locked ? 'yes' : 'no'], ['Stops at', p.stopAfter && moment(p.stopAfter)], ['Ends at', p.terminateAfter && moment(p.terminateAfter)],
        ]} />
      </Card>
      <div class="grid">
        <div>
          <Card title="Ports"><Ports of={p} /></Card>
          {(p.ssh.direct ?? p.ssh.proxy) && <Card title="SSH"><Cli line={(p.ssh.direct ?? p.ssh.proxy)!.command} /></Card>}
          <Card title="Environment">{Object.keys(p.env).length === 0 ? <p class="dim">Empty.</p> : <table class="plain"><tbody>{Object.entries(p.env).map(([k, v]) => <tr key={k}><th scope="row" class="mono">{k}</th><td class="mono">{v}</td></tr>)}</tbody></table>}</Card>
        </div>
        <Card title="The start, millisecond by millisecond"><Phases steps={p.steps} /></Card>
      </div>
      <Cli line={`gantry pod get -v ${p.id}`} />
    </>
  )
}

export function PodPage({ args: [id] }: { args: string[] }) {
  const pod = useLive<Pod>(`/v2/pods/${encodeURIComponent(id!)}`, (e) => e.kind === 'pod' && e.id === id)
  const [editing, edit] = useState(false)
  const p = pod.value
  if (!p) return <Page title="Pod"><Failure of={pod.error as ApiError} />{!pod.error && <p class="dim">Reading…</p>}</Page>
  const running = p.status === 'RUNNING'
  return (
    <Page title={p.name} actions={<><Badge of={p.statusReason === 'stopping' ? 'stopping' : p.status} /><button type="button" onClick={() => edit(true)}>Change</button><Actions of={p} /></>}>
      <p class="dim"><code>{p.id}</code> <Copy text={p.id} /></p>
      <Failure of={pod.error} />
      {editing && <Settings of={p} close={() => edit(false)} />}
      <Tabs names={['Summary', 'Metrics', 'Logs', 'Terminal', 'Files']}>{(tab) => {
        switch (tab) {
          case 'Metrics': return <Metrics id={p.id} running={running} />
          case 'Logs': return <Logs url={`/v2/pods/${p.id}/logs`} cli={`gantry pod logs -f ${p.id}`} previous />
          case 'Terminal': return running ? <Terminal key={p.incarnation} pod={p.id} /> : <p class="note">A terminal needs a pod that runs.</p>
          case 'Files': return running ? <Files key={p.incarnation} pod={p.id} /> : <p class="note">Files can be seen while the pod runs.</p>
          default: return <Summary of={p} />
        }
      }}</Tabs>
    </Page>
  )
}
