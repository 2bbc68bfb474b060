import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { address, call, json, send, type Schemas } from '../api'
import { moment, usd } from '../format'
import { ofAccount, ofFleet, useLive, useOnce, type Event } from '../live'
import { Chart } from '../parts/chart'
import { setWord, word } from '../route'
import { attempt, Badge, Card, Cli, Empty, Failure, Link, Page, Stat, Table, Tabs } from '../ui'

/** Networks as a picture: who is in the same one reaches each other, and nobody else does. */
export function Networks() {
  const nets = useLive<Schemas['NetworkList']>('/v2/network', (e) => e.kind === 'network' || e.kind === 'pod')
  const [check, set] = useState<Schemas['NetworkCheck']>()
  const [busy, wait] = useState(false)
  const list = nets.value?.networks ?? []
  return (
    <Page title="Networks" actions={list.length > 0 && <button type="button" disabled={busy} onClick={async () => {
      wait(true)
      await attempt('The networks were checked.', async () => set(await call('post', '/v2/network/check')))
      wait(false)
    }}>Check who reaches whom</button>}>
      <Failure of={nets.error} />
      {nets.value && list.every((n) => n.members.length === 0) && <Empty title="No pod is in a private network. Pods that join one reach each other by name, and nobody else reaches them there." cli={'gantry pod create one docker.io/library/busybox --gpu "NVIDIA H100 80GB HBM3" --global-networking -- sleep 1d'} />}
      {list.filter((n) => n.members.length > 0).map((n) => {
        const r = Math.min(170, 60 + n.members.length * 12)
        const middle = r + 40
        const at = (i: number) => [300 + 1.4 * r * Math.cos((2 * Math.PI * i) / n.members.length), middle + r * Math.sin((2 * Math.PI * i) / n.members.length)] as const
        return (
          <Card key={n.id} title={`${n.cidr}, *.${n.suffix}`}>
            {n.members.length <= 24 && <svg class="net" viewBox={`0 0 600 ${2 * middle}`} role="img" aria-label={`${n.members.length} pods that reach each other`}>
              {n.members.map((m, i) => <line key={m.podId} x1={300} y1={middle} x2={at(i)[0]} y2={at(i)[1]} />)}
              <rect class="hub" x={235} y={middle - 20} width={130} height={40} rx={8} /><text x={300} y={middle + 5} text-anchor="middle">{n.cidr}</text>
              {n.members.map((m, i) => <g key={m.podId}><circle cx={at(i)[0]} cy={at(i)[1]} r={7} /><text x={at(i)[0]} y={at(i)[1] + 22} text-anchor="middle">{m.name.slice(0, 24)}</text></g>)}
            </svg>}
            <div class="scroll"><table class="plain"><thead><tr><th scope="col">Pod</th><th scope="col">Name</th><th scope="col">Address</th></tr></thead><tbody>{n.members.map((m) => (
              <tr key={m.podId}><td><Link class="under" to={`/pods/${m.podId}`}>{m.name}</Link></td><td class="mono">{m.internalDns}</td><td class="mono">{m.ip}</td></tr>
            ))}</tbody></table></div>
          </Card>
        )
      })}
      {check && <Card title="Who reaches whom"><table class="plain"><tbody>{check.probes.map((p) => <tr key={p.from + p.to}><td>{p.from} → {p.to}</td><td>{p.ok ? <span class="good">{p.ms} ms</span> : <span class="bad">{p.problem ?? 'no answer'}</span>}</td></tr>)}</tbody></table></Card>}
      <Cli line="gantry net check" />
    </Page>
  )
}

type Record = Schemas['AccountBillingRecord']

const parts: [string, (r: Schemas['AccountAmounts']) => number][] = [
  ['Pods', (r) => r.podGpuAmount + r.podCpuAmount + r.podDiskAmount],
  ['Serverless', (r) => r.serverlessGpuAmount + r.serverlessCpuAmount + r.serverlessDiskAmount + r.serverlessFeeAmount],
  ['Clusters', (r) => r.clusterGpuAmount + r.clusterDiskAmount + r.clusterNetworkingAmount],
  ['Volumes', (r) => r.storageStandardAmount + r.storageHighPerformanceAmount],
  ['Public endpoints', (r) => r.endpointAmount],
]

/** Text as a cell of CSV; one that begins like a formula is no formula. */
const cell = (v: unknown): string => {
  const text = String(v)
  return `"${(typeof v === 'string' && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replace(/"/g, '""')}"`
}

function csv(records: Record[]): string {
  const names = Object.keys(records[0] ?? {}) as (keyof Record)[]
  return [names.join(','), ...records.map((r) => names.map((n) => cell(r[n])).join(','))].join('\r\n')
}

export function Billing() {
  const [bucket, pick] = useState(word('bucket') || 'day')
  const last = { hour: 48, day: 30, week: 26, month: 12 }[bucket] ?? 30
  const billing = useOnce<Schemas['AccountBilling']>(address('/v2/billing', {}, { bucketSize: bucket, lastN: last }))
  const b = billing.value
  const records = b?.records ?? []
  const data = useMemo(() => {
    const sums = new Map(records.map((r) => [Date.parse(r.startTime) / 1000, r.totalAmount]))
    for (const end of [b?.metadata.query.startTime, b?.metadata.query.endTime]) {
      const at = Date.parse(end ?? '') / 1000 // the chart shows all of the time that was asked for
      if (at && !sums.has(at)) sums.set(at, 0)
    }
    const times = [...sums.keys()].sort((x, y) => x - y)
    return [times, times.map((t) => sums.get(t)!)] as [number[], number[]]
  }, [b])
  const file = useMemo(() => `data:text/csv;charset=utf-8,${encodeURIComponent(csv(records))}`, [b])
  return (
    <Page title="Billing" actions={<>
      <select aria-label="Bucket" value={bucket} onChange={(e) => {
        pick(e.currentTarget.value)
        setWord('bucket', e.currentTarget.value)
      }}>{['hour', 'day', 'week', 'month'].map((x) => <option key={x}>{x}</option>)}</select>
      {records.length > 0 && <a class="button" href={file} download={`gantry-billing-${bucket}.csv`}>CSV</a>}
    </>}>
      <Failure of={billing.error} />
      {b && <div class="stats"><Stat name={`The last ${last} ${bucket}s`} value={usd(b.metadata.totals.totalAmount)} />{parts.map(([name, of]) => <Stat key={name} name={name} value={usd(of(b.metadata.totals))} />)}</div>}
      {b && records.length === 0 && <Empty title="Nothing was charged in this time." cli="gantry billing --last 30" />}
      {records.length > 0 && <>
        <Card title={`USD per ${bucket}`}><Chart label="Charges" unit="USD" bars series={['charged']} data={data} /></Card>
        <Card><div class="scroll"><table class="plain"><thead><tr><th scope="col">From</th>{parts.map(([n]) => <th key={n} scope="col" class="number">{n}</th>)}<th scope="col" class="number">All</th></tr></thead>
          <tbody>{[...records].reverse().map((r) => <tr key={r.startTime}><td>{moment(r.startTime)}</td>{parts.map(([n, of]) => <td key={n} class="number">{usd(of(r))}</td>)}<td class="number"><b>{usd(r.totalAmount)}</b></td></tr>)}</tbody></table></div></Card>
        <Cli line={`gantry billing --last ${last} --bucket ${bucket}`} />
      </>}
    </Page>
  )
}

const places: { [kind: string]: string } = { pod: '/pods/', endpoint: '/endpoints/', cluster: '/clusters/', host: '/hosts/' }

function Events({ operator }: { operator?: boolean }) {
  const [events, set] = useState<Event[]>([])
  const seen = useRef(new Set<string>())
  const stream = operator ? ofFleet : ofAccount
  useEffect(() => stream.listen({
    event: (e) => {
      const id = `${e.kind}/${e.id}/${e.at}/${e.type}/${e.status}`
      if (seen.current.has(id)) return
      seen.current.add(id)
      set((was) => [{ ...e, record: id }, ...was].slice(0, 2000))
    },
    reset: () => undefined,
  }), [])
  return (
    <>
      <p class="dim">What changes from the moment at which this page was opened. What was changed before is in the audit.</p>
      <Table label="events" rows={events} id={(e) => String(e.record)} text={(e) => `${e.kind} ${e.id} ${e.type} ${e.status} ${e.reason}`} empty={<Empty title="Nothing has changed since." cli="gantry events -f" />} columns={[
        { name: 'When', narrow: true, cell: (e) => new Date(e.at).toLocaleTimeString() },
        { name: 'What', narrow: true, sort: (e) => e.kind, cell: (e) => <>{e.kind} {e.type}</> },
        { name: 'Object', narrow: true, cell: (e) => (places[e.kind] && e.type !== 'deleted' ? <Link to={places[e.kind] + e.id}>{e.id}</Link> : <code>{e.id}</code>) },
        { name: 'Status', cell: (e) => e.status && <Badge of={e.status} /> }, { name: 'Why', cell: (e) => e.reason ?? '' },
      ]} />
    </>
  )
}

type Line = Schemas['AuditLine']

function Audit({ url }: { url: string }) {
  const [lines, set] = useState<Line[]>([])
  const [next, more] = useState<string | undefined>('')
  const [error, fail] = useState<Error>()
  const read = async () => {
    try {
      const page = await json<Schemas['AuditLog']>('GET', address(url, {}, { limit: 500, cursor: next }))
      set((was) => [...was, ...page.lines])
      more(page.next || undefined)
    } catch (e) {
      fail(e as Error)
    }
  }
  useEffect(() => void read(), [])
  const save = () => void attempt('The audit was read.', async () => {
    const a = document.createElement('a')
    a.href = URL.createObjectURL(await (await send(`${url}?format=jsonl`)).blob())
    a.download = 'gantry-audit.jsonl'
    a.click()
    setTimeout(() => URL.revokeObjectURL(a.href), 60000)
  })
  return (
    <>
      <Failure of={error} />
      <Table label="audit" rows={lines} id={(l) => l.at + l.operation + l.objectId + l.keyId} text={(l) => `${l.operation} ${l.objectId} ${l.keyName} ${l.address}`} empty={<Empty title="Nothing has been changed yet." cli="gantry audit" />}
        filters={<button type="button" onClick={save}>JSON lines</button>} columns={[
          { name: 'When', narrow: true, sort: (l) => l.at, cell: (l) => moment(l.at) }, { name: 'What', narrow: true, sort: (l) => l.operation, cell: (l) => l.operation }, { name: 'Object', narrow: true, cell: (l) => <code>{l.objectId ?? '–'}</code> },
          { name: 'Key', sort: (l) => l.keyName, cell: (l) => <span title={l.keyId}>{l.keyName}{l.operator && ' (operator)'}</span> }, { name: 'From', cell: (l) => l.address ?? '–' }, { name: 'Face', cell: (l) => l.face }, { name: 'Answer', number: true, cell: (l) => l.status },
        ]} />
      {next !== undefined && lines.length > 0 && <p><button type="button" onClick={() => void read()}>Earlier lines</button></p>}
    </>
  )
}

export const Activity = () => (
  <Page wide title="Activity"><Tabs names={['Events', 'Audit']}>{(tab) => (tab === 'Events' ? <Events /> : <Audit url="/v2/audit" />)}</Tabs></Page>
)

export const FleetActivity = () => (
  <Page wide title="Fleet activity"><Tabs names={['Events', 'Audit']}>{(tab) => (tab === 'Events' ? <Events operator /> : <Audit url="/admin/v1/audit" />)}</Tabs></Page>
)
