// Bundles the console into api/console/dist: the page, and files whose names change with what they hold, each also compressed.
import { execFileSync } from 'node:child_process'
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { brotliCompressSync, constants, gzipSync } from 'node:zlib'

const here = fileURLToPath(new URL('.', import.meta.url))
const dist = join(here, '../api/console/dist')
const assets = join(dist, 'assets')
const meta = join(here, 'gen/meta.json')

rmSync(assets, { recursive: true, force: true })
mkdirSync(assets, { recursive: true })
execFileSync(process.env.ESBUILD, [
  'src/main.tsx', '--bundle', '--splitting', '--format=esm', '--minify', '--target=es2022', '--jsx=automatic', '--loader:.md=text',
  '--jsx-import-source=preact', '--entry-names=[name]-[hash]', '--chunk-names=[name]-[hash]', `--outdir=${assets}`,
  `--metafile=${meta}`, '--legal-comments=eof', '--log-level=warning',
], { cwd: here, stdio: 'inherit' })

const outputs = JSON.parse(readFileSync(meta, 'utf8')).outputs
const [script, entry] = Object.entries(outputs).find(([, o]) => o.entryPoint === 'src/main.tsx')
const page = readFileSync(join(here, 'index.html'), 'utf8')
  .replace('SCRIPT', basename(script)).replace('STYLE', basename(entry.cssBundle))
writeFileSync(join(dist, 'index.html'), page)
for (const name of readdirSync(assets).map((n) => join('assets', n)).concat('index.html')) {
  const data = readFileSync(join(dist, name))
  writeFileSync(join(dist, name + '.gz'), gzipSync(data, { level: 9 }))
  writeFileSync(join(dist, name + '.br'), brotliCompressSync(data, {
    params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: data.length },
  }))
}
