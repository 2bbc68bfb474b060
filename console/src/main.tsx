import './style.css'
import { render } from 'preact'
import { App } from './app'
import { watch } from './route'

watch()
render(<App />, document.getElementById('app')!)
