import { useState } from 'preact/hooks'
import { call, json, type Schemas } from '../api'
import { moment, size, usd } from '../format'
import { useLive } from '../live'
import { Asking, NounPage, Once } from '../parts/noun'
import { attempt, Badge, Bar, Card, Cli, Dialog, Failure, Field, Link, Page, Sure, When } from '../ui'
import { variables } from './pod'

type Volume = Schemas['NetworkVolume']
type Key = Schemas['Key']
type Template = Schemas['Template']

export function Grow({ of: v }: { of: Volume }) {
  const [open, set] = useState(false)
  return (
    <>
      <button type="button" onClick={() => set(true)}>Change</button>
      {open && <Dialog title={`Change ${v.name}`} close={() => set(false)}>
        <Asking label="Change" act={async (read) => {
          await call('patch', '/v2/network-volumes/{id}', { path: { id: v.id }, body: { name: read('name'), size: Number(read('size')) } })
          set(false)
        }}>
          <Field label="Name"><input name="name" defaultValue={v.name} required /></Field>
          <Field label="Size, GB" hint="It may grow, never shrink."><input name="size" type="number" min={v.size} defaultValue={String(v.size)} required /></Field>
        </Asking>
      </Dialog>}
    </>
  )
}

function NewVolume({ done }: { done(): void }) {
  const centers = useLive<Schemas['DataCenterList']>('/v2/catalog/datacenters', () => false)
  const tiers = centers.value?.dataCenters.filter((d) => d.networkVolumeTypes.length > 0) ?? []
  return (
    <Asking act={async (read) => {
      await call('post', '/v2/network-volumes', { body: { name: read('name'), size: Number(read('size')), dataCenter: read('center') }, once: crypto.randomUUID() })
      done()
    }}>
      <Field label="Name"><input name="name" required autoFocus /></Field>
      <Field label="Size, GB"><input name="size" type="number" min={10} max={4096} defaultValue="10" required /></Field>
      <Field label="Data center" hint={centers.value && tiers.length === 0 ? 'No data center stores network volumes now.' : undefined}><select name="center" required>{tiers.map((d) => <option key={d.id} value={d.id}>{d.name}</option>)}</select></Field>
    </Asking>
  )
}

export const Volumes = () => (
  <NounPage<Volume> of={{
    title: 'Volumes', one: 'volume', url: '/v2/network-volumes', field: 'networkVolumes', kind: 'volume', id: (v) => v.id, name: (v) => v.name, text: (v) => `${v.name} ${v.id} ${v.dataCenter}`,
    empty: ['You have no network volumes. Their files outlive pods, and many pods may share one.', 'gantry volume create data --size 10 --data-center dev-1'],
    loses: 'All files in it are removed.', Form: NewVolume,
    columns: [
      { name: 'Name', narrow: true, sort: (v) => v.name, cell: (v) => <Link to={`/volumes/${v.id}`} title={v.id}>{v.name}</Link> },
      { name: 'Status', narrow: true, sort: (v) => v.status, cell: (v) => <span title={v.statusReason ?? ''}><Badge of={v.status} /> {v.statusReason}</span> },
      { name: 'Id', cell: (v) => <code>{v.id}</code> },
      { name: 'Data center', sort: (v) => v.dataCenter, cell: (v) => v.dataCenter },
      { name: 'Tier', cell: (v) => v.type.replace('_', ' ').toLowerCase() },
      { name: 'Size', number: true, sort: (v) => v.size, cell: (v) => `${v.size} GB` },
      { name: 'Used', cell: (v) => (v.used === null ? '–' : <Bar part={v.used / (v.size * 1e9)} label={size(v.used)} />) },
      { name: 'Created', sort: (v) => v.createdAt, cell: (v) => <When at={v.createdAt} /> },
      { name: 'Change', cell: (v) => <Grow of={v} /> },
    ],
  }} />
)

function TemplateForm({ of: t, done }: { of?: Template; done(): void }) {
  return (
    <Asking label={t ? 'Change' : 'Create'} act={async (read) => {
      const ports = read('ports').split(/[\s,]+/).filter(Boolean)
      const body = {
        name: read('name'), image: read('image'), category: read('category') as Template['category'], ...((t || read('args')) && { args: read('args') }), disk: Number(read('disk')),
        ...((t || ports.length > 0) && { ports }), env: variables(read('env')),
      }
      if (t) await call('patch', '/v2/templates/{id}', { path: { id: t.id }, body: { ...body, public: read('public') === 'on' } })
      else await call('post', '/v2/templates', { once: crypto.randomUUID(), body: { ...body, serverless: read('for') === 'workers' } })
      done()
    }}>
      <Field label="Name"><input name="name" required autoFocus defaultValue={t?.name} /></Field>
      <Field label="Image"><input name="image" class="mono" required placeholder="docker.io/me/train:1" defaultValue={t?.image} /></Field>
      <Field label="Arguments"><input name="args" class="mono" defaultValue={t?.args} /></Field>
      <div class="columns">
        {!t && <Field label="For"><select name="for"><option value="pods">Pods</option><option value="workers">Workers of endpoints</option></select></Field>}
        <Field label="Category"><select name="category" defaultValue={t?.category}><option>NVIDIA</option><option>CPU</option><option>AMD</option></select></Field>
        <Field label="Container disk, GB"><input name="disk" type="number" min={1} defaultValue={String(t?.disk ?? 10)} /></Field>
        <Field label="Ports"><input name="ports" class="mono" placeholder="8888/http, 22/tcp" defaultValue={t?.ports.join(', ')} /></Field>
      </div>
      <Field label="Environment" hint="One NAME=value a line."><textarea name="env" class="code" rows={3} defaultValue={Object.entries(t?.env ?? {}).map(([k, v]) => `${k}=${v}`).join('\n')} /></Field>
      {t && <label class="check"><input type="checkbox" name="public" defaultChecked={t.public} />Public: every account may use it, and read its environment</label>}
    </Asking>
  )
}

export const Templates = () => (
  <NounPage<Template> of={{
    title: 'Templates', one: 'template', url: '/v2/templates', field: 'templates', kind: 'template', id: (t) => t.id, name: (t) => t.name, text: (t) => `${t.name} ${t.image} ${t.id}`,
    empty: ['You have no templates. A template is what a pod is made from, under a name.', 'gantry template create train docker.io/me/train:1 --port 8888/http'],
    loses: 'Pods and endpoints made from it go on.', Form: TemplateForm, changes: true,
    columns: [
      { name: 'Name', narrow: true, sort: (t) => t.name, cell: (t) => <span title={t.id}>{t.name}</span> },
      { name: 'Image', sort: (t) => t.image, cell: (t) => <code>{t.image}</code> },
      { name: 'For', cell: (t) => (t.serverless ? 'workers' : 'pods') },
      { name: 'Disk', number: true, cell: (t) => `${t.disk} GB` },
      { name: 'Ports', cell: (t) => t.ports.join(', ') || '–' },
      { name: 'Public', cell: (t) => (t.public ? 'yes' : 'no') },
      { name: 'Created', sort: (t) => t.createdAt, cell: (t) => <When at={t.createdAt} /> },
      { name: 'Use', narrow: true, cell: (t) => <Link class="button" to={t.serverless ? `/endpoints/new?template=${t.id}` : `/pods/new?template=${t.id}`}>Use</Link> },
    ],
  }} />
)

export const Secrets = () => (
  <NounPage<Schemas['Secret']> of={{
    title: 'Secrets', one: 'secret', url: '/v2/secrets', field: 'secrets', kind: 'secret', id: (s) => s.name, name: (s) => s.name, text: (s) => s.name,
    empty: ['You have no secrets. Pods get them in their environment; nothing shows their values again.', 'gantry secret set token < token.txt'], loses: 'Pods that name it cannot start any more.',
    Form: ({ done }) => (
      <Asking act={async (read) => {
        await call('put', '/v2/secrets/{id}', { path: { id: read('name') }, body: { value: read('value') } })
        done()
      }}>
        <Field label="Name" hint="One that exists gets the new value."><input name="name" required autoFocus /></Field>
        <Field label="Value"><textarea name="value" class="code" rows={4} required autoComplete="off" spellcheck={false} /></Field>
      </Asking>
    ),
    columns: [
      { name: 'Name', narrow: true, sort: (s) => s.name, cell: (s) => s.name },
      { name: 'In an environment', cell: (s) => <code>{`{{ GANTRY_SECRET_${s.name} }}`}</code> },
      { name: 'Changed', sort: (s) => s.updatedAt, cell: (s) => <When at={s.updatedAt} /> },
      { name: 'Created', sort: (s) => s.createdAt, cell: (s) => <When at={s.createdAt} /> },
    ],
  }} />
)

const Days = () => <Field label="Ends after days" hint="Empty: never."><input name="days" type="number" min={1} /></Field>
const after = (days: string) => days && { expiresAt: new Date(Date.now() + Number(days) * 86400000).toISOString() }

const groups = ['pods', 'serverless', 'templates', 'networkVolumes', 'registries', 'catalog', 'billing', 'account', 'graphql', 's3'] as const

function NewKey({ done }: { done(shown: preact.ComponentChildren): void }) {
  const [preset, pick] = useState('all')
  const [invoke, allow] = useState('none')
  const endpoints = useLive<Schemas['EndpointList']>(invoke === 'some' ? '/v2/serverless' : null, () => false)
  return (
    <Asking act={async (read, all) => {
      const permissions = Object.fromEntries(groups.map((g) => [g, read(g)]).filter(([, a]) => a))
      const made = await call('post', '/v2/account/keys', {
        body: {
          name: read('name'), preset: preset as 'all', ...(Object.keys(permissions).length > 0 && { permissions }), ...after(read('days')),
          ...(preset === 'restricted' && invoke !== 'none' && { invoke: invoke === 'all' ? 'all' as const : all('endpoint') }),
        },
      })
      done(<Once what="The key" text={made.apiKey} />)
    }}>
      <Field label="Name"><input name="name" required autoFocus /></Field>
      <div class="columns">
        <Field label="May do"><select name="preset" value={preset} onChange={(e) => pick(e.currentTarget.value)}><option value="all">Everything in this account</option><option value="readOnly">Read alone</option><option value="restricted">Only what is chosen below</option></select></Field>
        <Days />
      </div>
      <details open={preset === 'restricted'}><summary>Groups of routes</summary>
        <div class="columns">{groups.map((g) => <Field key={g} label={g.replace(/([A-Z])/g, ' $1').toLowerCase()}><select name={g}><option value="">{preset === 'restricted' ? 'none' : 'as above'}</option>{preset !== 'restricted' && <option>none</option>}<option>read</option><option>write</option></select></Field>)}</div>
        {preset === 'restricted' && <Field label="Runs jobs of"><select value={invoke} onChange={(e) => allow(e.currentTarget.value)}><option value="none">no endpoint</option><option value="all">all endpoints</option><option value="some">some endpoints</option></select></Field>}
        {invoke === 'some' && endpoints.value?.endpoints.map((e) => <label key={e.id} class="check"><input type="checkbox" name="endpoint" value={e.id} />{e.name}</label>)}
      </details>
    </Asking>
  )
}

function Disable({ of: k }: { of: Key }) {
  return <button type="button" onClick={() => void attempt(`${k.name} was ${k.disabled ? 'enabled' : 'disabled'}.`, () => call('patch', '/v2/account/keys/{id}', { path: { id: k.id }, body: { disabled: !k.disabled } }))}>{k.disabled ? 'Enable' : 'Disable'}</button>
}

export const Keys = () => (
  <>
    <NounPage<Key> of={{
      title: 'API keys', one: 'key', url: '/v2/account/keys', field: 'keys', kind: 'key', id: (k) => k.id, name: (k) => k.name, text: (k) => `${k.name} ${k.hint} ${k.id}`,
      empty: ['The account has no keys.', 'gantry key create ci --preset readOnly'], loses: 'Whoever uses it is refused from now on, sessions of this console among them.', Form: NewKey,
      columns: [
        { name: 'Name', narrow: true, sort: (k) => k.name, cell: (k) => <>{k.name} {k.disabled && <Badge of="disabled" />}</> },
        { name: 'Key', cell: (k) => <code>{k.hint}…</code> },
        { name: 'May', cell: (k) => { const may = Object.entries(k.permissions).filter(([, a]) => a !== 'none').map(([g, a]) => `${g}:${a}`).join(', '); return <span title={may}>{may || 'nothing'}</span> } },
        { name: 'Ends', sort: (k) => k.expiresAt ?? '~', cell: (k) => (k.expiresAt ? moment(k.expiresAt) : 'never') },
        { name: 'Last used', sort: (k) => k.lastUsedAt ?? '', cell: (k) => <When at={k.lastUsedAt} /> },
        { name: 'Disable', cell: (k) => <Disable of={k} /> },
      ],
    }} />
  </>
)

export const Registries = () => (
  <NounPage<Schemas['Registry']> of={{
    title: 'Registries', one: 'credential', url: '/v2/registries', field: 'registries', kind: 'registry', id: (r) => r.id, name: (r) => r.name, text: (r) => `${r.name} ${r.id}`,
    empty: ['You have no credentials of registries. Private images need one.', 'gantry registry create hub --username me < password.txt'], loses: 'Pods that pull with it cannot start any more.',
    Form: ({ done }) => (
      <Asking act={async (read) => {
        await call('post', '/v2/registries', { body: { name: read('name'), username: read('user'), password: read('password') }, once: crypto.randomUUID() })
        done()
      }}>
        <Field label="Name"><input name="name" required autoFocus /></Field>
        <Field label="User"><input name="user" required autoComplete="off" /></Field>
        <Field label="Password or token"><input name="password" type="password" required autoComplete="new-password" /></Field>
      </Asking>
    ),
    columns: [{ name: 'Name', narrow: true, sort: (r) => r.name, cell: (r) => r.name }, { name: 'Id', cell: (r) => <code>{r.id}</code> }],
  }} />
)

export const S3Keys = () => (
  <NounPage<Schemas['S3Key']> of={{
    title: 'S3 keys', one: 'S3 key', url: '/v2/s3-keys', field: 's3Keys', kind: 's3-key', id: (k) => k.id, name: (k) => k.name, text: (k) => `${k.name} ${k.id}`,
    empty: ['You have no S3 keys. They give S3 clients access to the files of network volumes.', 'gantry s3-key create me'], loses: 'Clients that use it are refused within a minute.',
    Form: ({ done }) => (
      <Asking act={async (read) => {
        const made = await call('post', '/v2/s3-keys', { body: { name: read('name'), readOnly: read('only') === 'on', ...after(read('days')) } })
        done(<><p>Access key: <code>{made.key.id}</code></p><Once what="The secret access key" text={made.secretAccessKey} /></>)
      }}>
        <Field label="Name"><input name="name" required autoFocus /></Field>
        <Days />
        <label class="check"><input type="checkbox" name="only" />Read alone</label>
      </Asking>
    ),
    columns: [
      { name: 'Name', narrow: true, sort: (k) => k.name, cell: (k) => k.name }, { name: 'Access key', cell: (k) => <code>{k.id}</code> }, { name: 'May', cell: (k) => (k.readOnly ? 'read' : 'read and write') },
      { name: 'Ends', cell: (k) => (k.expiresAt ? moment(k.expiresAt) : 'never') }, { name: 'Created', cell: (k) => <When at={k.createdAt} /> },
    ],
  }} />
)

/** Where the account's events are sent. */
function Hook({ of: h, done }: { of: Schemas['Account']['webhook']; done(): void }) {
  const set = (what: string, webhook: NonNullable<Schemas['UpdateAccountSettingsRequest']['webhook']> | null) => attempt(what, () => call('patch', '/v2/account', { body: { webhook } })).then((good) => good && done())
  return (
    <Card title="Webhook" actions={h && <Sure label="Delete the webhook" ask={<p>Events are sent to <b>{h.address}</b> no more.</p>} act={() => void set('The webhook was deleted.', null)} />}>
      {h ? <>
        <p>Events are sent to <code>{h.address}</code>, {h.signed ? 'signed' : 'not signed'}: {h.kinds.join(', ')}.</p>
        <p class={`note ${h.error ? 'bad' : 'ok'}`}>{h.error ? `The last call was given up: ${h.error}` : h.at ? <>The last call was taken <When at={h.at} />.</> : 'Nothing has been sent yet.'}</p>
      </> : <p class="dim">Events are sent nowhere. A webhook is told of what changes in the account.</p>}
      <Asking label={h ? 'Replace' : 'Create'} act={async (read) => {
        const kinds = read('kinds').split(/[\s,]+/).filter(Boolean)
        await set('The webhook was saved.', { url: read('url'), ...(read('secret') && { secret: read('secret') }), ...(kinds.length > 0 && { kinds }) })
      }}>
        <input type="text" name="username" autoComplete="username" value="webhook" hidden readOnly />
        <div class="columns">
          <Field label="URL"><input name="url" type="url" required placeholder="https://ops.example.com/gantry" /></Field>
          <Field label="Secret" hint="Calls are signed under it. Empty: as it is."><input name="secret" type="password" minLength={16} autoComplete="new-password" /></Field>
          <Field label="Kinds of events" hint="Such as pod, low-balance. Empty: all."><input name="kinds" class="mono" /></Field>
        </div>
      </Asking>
    </Card>
  )
}

/** What holds for the whole account. */
export function Account() {
  const account = useLive<Schemas['Account']>('/v2/account', (e) => ['account', 'balance', 'low-balance'].includes(e.kind))
  const keys = useLive<Schemas['SSHKeys']>('/v2/account/ssh-keys', (e) => e.kind === 'ssh-keys')
  const a = account.value
  const money = (text: string) => (text ? Number(text) : null)
  return (
    <Page title="Account">
      <Failure of={account.error} />
      {a && <Card title={a.name}>
        <p><code>{a.id}</code> · balance {usd(a.balance)} · {usd(a.hourlyRate)} / h now</p>
        <Asking label="Save" act={async (read) => {
          if (await attempt('The account was changed.', () => call('patch', '/v2/account', { body: { spendLimit: money(read('limit')), lowBalance: money(read('low')) } }))) account.reload()
        }}>
          <div class="columns">
            <Field label="Spend limit, USD per hour" hint="Empty: none. What would go beyond it is refused."><input name="limit" type="number" step="0.01" min={0} defaultValue={a.spendLimit?.toString() ?? ''} /></Field>
            <Field label="Tell below a balance of, USD" hint="Empty: never."><input name="low" type="number" step="0.01" defaultValue={a.lowBalance?.toString() ?? ''} /></Field>
          </div>
        </Asking>
      </Card>}
      {a && <Hook of={a.webhook} done={account.reload} />}
      <Failure of={keys.error} />
      {keys.value && <Card title="SSH keys">
        <Asking key={keys.value.keys.join()} label="Save" act={async (read) => {
          const lines = read('keys').split('\n').map((l) => l.trim()).filter(Boolean)
          if (await attempt('The SSH keys were saved.', () => json('PUT', '/v2/account/ssh-keys', { keys: lines }))) keys.reload()
        }}>
          <Field label="Public keys" hint="One a line. Pods that start an SSH server let them in."><textarea name="keys" class="code" rows={5} defaultValue={keys.value.keys.join('\n')} /></Field>
        </Asking>
      </Card>}
      <Cli line="gantry account show" />
    </Page>
  )
}
