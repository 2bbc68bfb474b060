// What operators offer: data centers, storage of network volumes, public models, and which public templates are listed where.
import { useState } from 'preact/hooks'
import { call, json, type Schemas } from '../api'
import { usd } from '../format'
import { ofFleet, useOnce } from '../live'
import { Asking, NounPage } from '../parts/noun'
import { attempt, Badge, Cli, Empty, Failure, Field, Page, Table, Tabs } from '../ui'

type Center = Schemas['DataCenterEntry']
type Backend = Schemas['Backend']
type Model = Schemas['Model']

const regions = ['EUROPE', 'NORTH_AMERICA', 'SOUTH_AMERICA', 'ASIA', 'MIDDLE_EAST', 'AFRICA', 'OCEANIA', 'ANTARCTICA', 'UNKNOWN'] as const
const words = (text: string) => text.split(/[\s,]+/).filter(Boolean)

function CenterForm({ of: c, done }: { of?: Center; done(): void }) {
  return (
    <Asking label={c ? 'Change' : 'Create'} act={async (read) => {
      await call('put', '/admin/v1/datacenters/{id}', { path: { id: c?.id ?? read('id') }, body: {
        name: read('name'), region: read('region') as Center['region'], ...(read('country') && { country: read('country') }), globalNetwork: read('network') === 'on',
        underlay: read('underlay') as Center['underlay'], compliance: words(read('compliance')) as NonNullable<Schemas['PutDataCenterRequest']['compliance']>,
      } })
      done()
    }}>
      {!c && <Field label="Id" hint="Hosts join under it. One that exists is replaced."><input name="id" required autoFocus placeholder="eu-1" /></Field>}
      <Field label="Name"><input name="name" required maxLength={191} defaultValue={c?.name} /></Field>
      <div class="columns">
        <Field label="Region"><select name="region" defaultValue={c?.region}>{regions.map((r) => <option key={r}>{r}</option>)}</select></Field>
        <Field label="Country" hint="Two letters. Empty: not known."><input name="country" pattern="[A-Z]{2}" maxLength={2} defaultValue={c?.country ?? ''} /></Field>
        <Field label="Its hosts reach each other over"><select name="underlay" defaultValue={c?.underlay}><option value="encrypted">any wire: WireGuard</option><option value="private">a wire that nobody else reads: VXLAN</option></select></Field>
      </div>
      <Field label="Certificates" hint="Such as GDPR, ISO_IEC_27001."><input name="compliance" defaultValue={c?.compliance.join(', ')} /></Field>
      <label class="check"><input type="checkbox" name="network" defaultChecked={c?.globalNetwork} />Pods here may join private networks</label>
    </Asking>
  )
}

export const DataCenters = () => (
  <NounPage<Center> of={{
    title: 'Data centers', one: 'data center', url: '/admin/v1/datacenters', field: 'dataCenters', kind: 'data-center', stream: ofFleet, id: (c) => c.id, name: (c) => c.id, text: (c) => `${c.id} ${c.name} ${c.region}`,
    empty: ['No data center is described yet.', 'gantry admin datacenter put eu-1 --help'], loses: 'It must have no hosts.', Form: CenterForm, changes: true,
    columns: [
      { name: 'Id', narrow: true, sort: (c) => c.id, cell: (c) => c.id }, { name: 'Name', narrow: true, sort: (c) => c.name, cell: (c) => c.name }, { name: 'Region', cell: (c) => c.region.replace('_', ' ').toLowerCase() }, { name: 'Country', cell: (c) => c.country ?? '–' },
      { name: 'Private networks', cell: (c) => (c.globalNetwork ? 'yes' : 'no') }, { name: 'Underlay', cell: (c) => c.underlay }, { name: 'Certificates', cell: (c) => c.compliance.join(', ') || '–' },
    ],
  }} />
)

function BackendForm({ done }: { done(): void }) {
  const centers = useOnce<Schemas['DataCenterEntryList']>('/admin/v1/datacenters')
  const [kind, pick] = useState<Backend['kind']>('nfs')
  return (
    <Asking act={async (read) => {
      await call('post', '/admin/v1/volume-backends', { body: {
        id: read('id'), dataCenterId: read('center'), type: read('tier') as Backend['type'], kind, ...(read('host') && { storageHost: read('host') }),
        ...(kind === 'nfs' && { nfs: { server: read('server'), export: read('path'), ...(read('options') && { options: read('options') }) } }),
        ...(kind === 'local' && { local: { path: read('path') } }),
        ...(kind === 'cephfs' && { cephfs: { monitors: words(read('monitors')), fileSystem: read('fs'), user: read('user'), adminUser: read('admin'), ...(read('path') && { path: read('path') }) }, key: read('key'), adminKey: read('adminKey') }),
      } })
      done()
    }}>
      <div class="columns">
        <Field label="Id"><input name="id" required autoFocus pattern="[a-z][a-z0-9\-]*" placeholder="fast" /></Field>
        <Field label="Data center"><select name="center" required>{centers.value?.dataCenters.map((c) => <option key={c.id} value={c.id}>{c.name}</option>)}</select></Field>
        <Field label="Tier"><select name="tier"><option>STANDARD</option><option>HIGH_PERFORMANCE</option></select></Field>
        <Field label="Kind"><select name="kind" value={kind} onChange={(e) => pick(e.currentTarget.value as Backend['kind'])}><option>nfs</option><option>cephfs</option><option>local</option></select></Field>
        {kind === 'nfs' && <><Field label="Server"><input name="server" required /></Field><Field label="Mount options" hint="Empty: the defaults."><input name="options" /></Field></>}
        {kind === 'cephfs' && <><Field label="Monitors" hint="host:port, one or more."><input name="monitors" required /></Field><Field label="File system"><input name="fs" required /></Field>
          <Field label="User of all hosts"><input name="user" required /></Field><Field label="Its key"><input name="key" type="password" required autoComplete="new-password" /></Field>
          <Field label="User that sets quotas"><input name="admin" required /></Field><Field label="Its key, of storage hosts alone"><input name="adminKey" type="password" required autoComplete="new-password" /></Field></>}
        <Field label={kind === 'nfs' ? 'Export' : 'Path'}><input name="path" class="mono" required={kind !== 'cephfs'} pattern="/.*" /></Field>
        <Field label="Storage host" hint={kind === 'local' ? 'The one that has the path.' : 'Empty: any with the role storage.'}><input name="host" class="mono" required={kind === 'local'} /></Field>
      </div>
    </Asking>
  )
}

export const Backends = () => (
  <NounPage<Backend> of={{
    title: 'Volume backends', one: 'backend', url: '/admin/v1/volume-backends', field: 'backends', kind: 'volume-backend', stream: ofFleet, id: (b) => b.id, name: (b) => b.id, text: (b) => `${b.id} ${b.kind} ${b.dataCenterId}`,
    empty: ['There is no storage for network volumes yet.', 'gantry admin volume-backend create fast --help'], loses: 'It must have no volumes. Nothing on the storage is removed.', Form: BackendForm,
    columns: [
      { name: 'Backend', narrow: true, cell: (b) => b.id }, { name: 'Kind', narrow: true, cell: (b) => b.kind }, { name: 'Data center', cell: (b) => b.dataCenterId }, { name: 'Tier', cell: (b) => b.type.toLowerCase() }, { name: 'Volumes', number: true, cell: (b) => b.volumes }, { name: 'Sizes, GB', number: true, cell: (b) => b.sizeGb },
      { name: 'Sizes are', cell: (b) => b.quota }, { name: 'Problem', cell: (b) => (b.problem ? <span class="bad">{b.problem}</span> : 'none') },
      { name: 'New volumes', cell: (b) => <button type="button" onClick={() => void attempt('The backend was changed.', () => json('PATCH', `/admin/v1/volume-backends/${encodeURIComponent(b.id)}`, { closed: !b.closed }))}>{b.closed ? 'Let in' : 'Keep away'}</button> },
    ],
  }} />
)

function ModelForm({ of: m, done }: { of?: Model; done(): void }) {
  return (
    <Asking label={m ? 'Change' : 'Create'} act={async (read) => {
      const unit = read('counted') && { unit: Number(read('unit')), counted: read('counted'), maxUnits: Number(read('most')) }
      await call('put', '/admin/v1/models/{id}', { path: { id: m?.id ?? read('id') }, body: {
        endpointId: read('endpoint'), description: read('description'), price: { request: Number(read('request')), ...unit }, limits: { jobs: Number(read('jobs')) }, closed: read('closed') === 'on',
        ...(read('schema') && { inputSchema: JSON.parse(read('schema')) }),
      } })
      done()
    }}>
      <div class="columns">
        {!m && <Field label="Id" hint="Calls go to /v2/ID/run."><input name="id" required autoFocus pattern="[a-z0-9\-]+" /></Field>}
        <Field label="Endpoint" hint="A queue endpoint of any account, which earns what calls cost."><input name="endpoint" class="mono" required defaultValue={m?.endpointId} /></Field>
        <Field label="USD per job"><input name="request" type="number" step="any" min={0} max={1000} required defaultValue={String(m?.price.request ?? 0)} /></Field>
        <Field label="Jobs of an account at a time"><input name="jobs" type="number" min={1} max={1000} required defaultValue={String(m?.limits.jobs ?? 10)} /></Field>
        <Field label="Units are counted in" hint="A member of the output. Empty: no price per unit."><input name="counted" defaultValue={m?.price.counted} /></Field>
        <Field label="USD per unit"><input name="unit" type="number" step="any" min={0} max={1000} defaultValue={String(m?.price.unit ?? 0)} /></Field>
        <Field label="Units that are charged at most"><input name="most" type="number" min={0} max={1000000} defaultValue={String(m?.price.maxUnits ?? 0)} /></Field>
      </div>
      <Field label="What it does"><textarea name="description" rows={3} maxLength={1000} defaultValue={m?.description} /></Field>
      <Field label="JSON Schema of the input" hint="Empty: any object."><textarea name="schema" class="code" rows={4} spellcheck={false} defaultValue={m?.inputSchema ? JSON.stringify(m.inputSchema, null, 2) : ''} /></Field>
      <label class="check"><input type="checkbox" name="closed" defaultChecked={m?.closed} />Takes no new jobs</label>
    </Asking>
  )
}

export const Models = () => (
  <NounPage<Model> of={{
    title: 'Public models', one: 'model', url: '/admin/v1/models', field: 'models', kind: 'model', stream: ofFleet, id: (m) => m.id, name: (m) => m.id, text: (m) => `${m.id} ${m.description ?? ''} ${m.endpointId}`,
    empty: ['There are no public models: endpoints of one account that every account may call, at a price for each job.', 'gantry admin model put llama --help'], loses: 'No job of it may wait or run. Its endpoint stays.', Form: ModelForm, changes: true,
    columns: [
      { name: 'Model', narrow: true, sort: (m) => m.id, cell: (m) => <span title={m.description}>{m.id}</span> }, { name: 'Endpoint', cell: (m) => <code>{m.endpointId}</code> }, { name: 'Account', cell: (m) => <code>{m.accountId}</code> },
      { name: 'USD / job', number: true, narrow: true, sort: (m) => m.price.request, cell: (m) => usd(m.price.request, 4) }, { name: 'Per unit', cell: (m) => (m.price.counted ? `${usd(m.price.unit ?? 0, 6)} for each ${m.price.counted}` : '–') },
      { name: 'Jobs', number: true, sort: (m) => m.jobs, cell: (m) => m.jobs }, { name: 'State', cell: (m) => <Badge of={m.closed ? 'closed' : 'open'} /> },
    ],
  }} />
)

const sources = ['community', 'verified', 'official'] as const

function Listed({ source }: { source: string }) {
  const list = useOnce<Schemas['TemplateList']>(`/v2/catalog/templates?source=${source}&limit=1000`)
  return (
    <>
      <Failure of={list.error} />
      <Table label="public templates" rows={list.value?.templates ?? []} loading={!list.value && !list.error} id={(t) => t.id} text={(t) => `${t.name} ${t.image} ${t.id}`}
        empty={<Empty title={`No public template is listed as ${source}.`} cli={`gantry catalog templates --source ${source}`} />} columns={[
          { name: 'Name', narrow: true, sort: (t) => t.name, cell: (t) => <span title={t.id}>{t.name}</span> }, { name: 'Image', sort: (t) => t.image, cell: (t) => <code>{t.image}</code> }, { name: 'For', cell: (t) => (t.serverless ? 'workers' : 'pods') }, { name: 'Category', cell: (t) => t.category },
          { name: 'List as', narrow: true, cell: (t) => sources.filter((s) => s !== source).map((s) => (
            <button key={s} type="button" onClick={() => void attempt(`${t.name} is listed as ${s}.`, () => call('put', '/admin/v1/templates/{id}/source', { path: { id: t.id }, body: { source: s } }).then(list.reload))}>as {s}</button>)) },
        ]} />
    </>
  )
}

export const PublicTemplates = () => (
  <Page wide title="Public templates">
    <p class="dim">Templates that accounts made public. Every account sees under which of three names each is listed.</p>
    <Tabs names={[...sources]}>{(tab) => <Listed key={tab} source={tab} />}</Tabs>
    <Cli line="gantry admin template-source TEMPLATE verified" />
  </Page>
)
