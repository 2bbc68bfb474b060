import { useMemo, useState } from 'preact/hooks'
import { call, type Schemas } from '../api'
import { ofFleet, useLive, useRows } from '../live'
import { Asking, Once } from '../parts/noun'
import { attempt, Badge, Card, Cli, Dialog, Empty, Facts, Failure, Field, Page, Sure, Table, When } from '../ui'

export function Gateways() {
  const list = useLive<Schemas['GatewayList']>('/admin/v1/gateways', (e) => e.kind === 'gateway', ofFleet)
  const [making, make] = useState(false)
  const [token, show] = useState('')
  const act = (what: string, f: () => Promise<unknown>) => void attempt(what, () => f().then(list.reload))
  return (
    <Page wide title="Gateways" actions={<><button type="button" onClick={list.reload}>Read again</button><button type="button" class="primary" onClick={() => make(true)}>New gateway</button></>}>
      <Failure of={list.error} />
      <Table label="gateways" rows={list.value?.gateways ?? []} loading={!list.value && !list.error} id={(g) => g.id} text={(g) => `${g.name} ${g.id} ${g.address} ${g.state}`}
        empty={<Empty title="There are no gateways: the schedulers carry all requests to pods." cli="gantry gateway token" />} columns={[
          { name: 'Name', narrow: true, sort: (g) => g.name, cell: (g) => <span title={g.id}>{g.name}</span> }, { name: 'State', narrow: true, sort: (g) => g.state, cell: (g) => <Badge of={g.state} /> },
          { name: 'Address', cell: (g) => <code>{g.address}</code> }, { name: 'Data center', cell: (g) => g.dataCenterId ?? 'all' }, { name: 'Requests', number: true, sort: (g) => g.requests, cell: (g) => g.requests },
          { name: 'Hosts', number: true, sort: (g) => g.hosts, cell: (g) => g.hosts }, { name: 'Version', cell: (g) => g.version ?? '–' }, { name: 'Heard', cell: (g) => <When at={g.heardAt} /> },
          { name: '', narrow: true, cell: (g) => <>
            {g.drainingAt ? <button type="button" onClick={() => act(`${g.name} takes requests again.`, () => call('post', '/admin/v1/gateways/{id}/undrain', { path: { id: g.id } }))}>Undrain</button>
              : <Sure kind="" label="Drain" ask={<p><b>{g.name}</b> takes no new requests. The {g.requests} that are under way end by themselves, or are ended after its limit.</p>} act={() => act(`${g.name} is being drained.`, () => call('post', '/admin/v1/gateways/{id}/drain', { path: { id: g.id } }))} />}
            <Sure label="Remove" word={g.name} ask={<p>Its certificate is refused from now on, and the {g.requests} requests that run through it end.</p>} act={() => act(`${g.name} was removed.`, () => call('delete', '/admin/v1/gateways/{id}', { path: { id: g.id } }))} /></> },
        ]} />
      {making && <Dialog title="New gateway" close={() => make(false)}><Asking label="Make a token" act={async (read) => {
        const made = await call('post', '/admin/v1/gateways/tokens', { body: { ...(read('center') && { dataCenterId: read('center') }) } })
        make(false)
        show(made.token)
      }}><Field label="Data center" hint="Empty: it reaches the hosts of all."><input name="center" autoFocus /></Field></Asking></Dialog>}
      {token && <Dialog title="New gateway" close={() => show('')}><Once what="The token, with which one gateway may join," text={token} /></Dialog>}
      <Cli line="gantry gateway list" />
    </Page>
  )
}

/** Which versions run, and what the members have agreed on. */
export function Versions() {
  const hosts = useRows<Schemas['Host']>('/admin/v1/hosts', 'hosts', { kind: 'host', id: (h) => h.id, stream: ofFleet, keep: (h) => h.state !== 'gone' })
  const cluster = useLive<Schemas['Cluster']>('/admin/v1/cluster', (e) => e.kind === 'scheduler', ofFleet)
  const gateways = useLive<Schemas['GatewayList']>('/admin/v1/gateways', (e) => e.kind === 'gateway', ofFleet)
  const rows = useMemo(() => {
    const by: { [key: string]: { what: string; version: string; names: string[] } } = {}
    const add = (what: string, version: string | null, name: string) => (by[`${what} ${version}`] ??= { what, version: version ?? 'not heard', names: [] }).names.push(name)
    for (const m of cluster.value?.members ?? []) add('Schedulers', m.version || null, m.name)
    for (const h of hosts.rows) add('Agents', h.agentVersion, h.name)
    for (const g of gateways.value?.gateways ?? []) add('Gateways', g.version, g.name)
    return Object.values(by)
  }, [hosts.rows, cluster.value, gateways.value])
  const c = cluster.value
  const several = new Set(rows.map((r) => r.version)).size > 1
  return (
    <Page title="Versions">
      <Failure of={cluster.error ?? hosts.error ?? gateways.error} />
      {c && <p class={`note ${several ? '' : 'ok'}`} role="status">{several ? 'An upgrade is under way, or was left: not all run the same version.' : 'All that were heard run the same version.'} Commands up to feature level {c.level} are in force: the least that every member has announced.</p>}
      <Card title="Who runs what"><div class="scroll"><table class="plain"><thead><tr><th scope="col">What</th><th scope="col">Version</th><th scope="col" class="number">How many</th><th scope="col">Which</th></tr></thead>
        <tbody>{rows.map((r) => <tr key={r.what + r.version}><th scope="row">{r.what}</th><td><code>{r.version}</code></td><td class="number">{r.names.length}</td><td>{r.names.slice(0, 12).join(', ')}{r.names.length > 12 && ` and ${r.names.length - 12} more`}</td></tr>)}</tbody></table></div></Card>
      {c && <Card title="Cluster"><Facts of={[['Feature level', c.level], ['Members', c.members.length], ['Leader', c.members.find((m) => m.leader)?.name]]} /></Card>}
      <p class="dim">In which order to upgrade is in docs/upgrade.md: schedulers, then gateways, then agents.</p>
      <Cli line="gantry raft members" />
    </Page>
  )
}
