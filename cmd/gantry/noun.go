package main

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"gantry/api/admin"
	"gantry/client"
)

// noun is how the command line treats the records of one kind: how it lists, shows, finds and deletes them.
type noun[T, L any] struct {
	kind    string // what sentences call one of them
	ids     string // what the help calls their ids; "Id" when empty
	bare    bool   // they have no names
	loss    string // what goes with one that is deleted, so that a terminal is asked first; empty: it is not
	all     func(*client.Client, context.Context) (client.Answer[L], error)
	items   func(L) []T
	thing   func(T) thing
	one     func(*client.Client, context.Context, string) (client.Answer[T], error)
	remove  func(*client.Client, context.Context, string) error
	columns []string
	row     func(T, time.Time) []string
	sheet   func(T, time.Time) string // of one record; nil: a table with one row
}

// anyNoun is a noun of any records.
type anyNoun interface {
	list(ctx context.Context, a *app, c *client.Client) error
	get(ctx context.Context, a *app, c *client.Client, ref string) error
	delete(ctx context.Context, a *app, c *client.Client, refs []string, sure confirmed) error
	things(ctx context.Context, c *client.Client) ([]thing, error)
	help(many bool) string
}

// nouns are the kinds of records by the command whose subcommands are about them.
func nouns() map[string]anyNoun {
	return map[string]anyNoun{
		"pod": pods, "endpoint": endpoints, "cluster": instantClusters, "secret": secrets, "template": templates, "registry": registries, "volume": volumes, "s3-key": s3Keys,
		"key": keys, "account": accounts, "host": hosts, "raft": members, "gateway": gateways, "person": persons, "admin datacenter": dataCenters,
		"admin gpu-type": gpuTypes, "admin cpu-flavor": cpuFlavors, "admin volume-backend": backends,
		"admin model": publicModels,
	}
}

// nounOf returns the kind of records that a command is about; nil when it is none of nouns.
func nounOf(command *kong.Node) anyNoun {
	if command == nil || command.Parent == nil {
		return nil
	}
	return nouns()[pathOf(command.Parent)]
}

// pathOf returns the words of a command without the program's name.
func pathOf(command *kong.Node) string {
	if command.Parent == nil {
		return ""
	}
	return strings.TrimSpace(pathOf(command.Parent) + " " + command.Name)
}

// listCmd lists the records of a noun.
type listCmd struct{}

// Run lists the records.
func (listCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return nounOf(a.command).list(ctx, a, c)
}

// getCmd shows one record of a noun.
type getCmd struct {
	Ref string `arg:""`
}

// Run shows the record.
func (cmd getCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return nounOf(a.command).get(ctx, a, c, cmd.Ref)
}

// deleteCmd deletes records of a noun.
type deleteCmd struct {
	Refs []string `arg:""`
}

// Run deletes the records, each by itself: one that refuses does not keep the others.
func (cmd deleteCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return nounOf(a.command).delete(ctx, a, c, cmd.Refs, confirmed{})
}

// deleteAskingCmd deletes records of a noun with which more goes: a terminal is asked first.
type deleteAskingCmd struct {
	Refs []string `arg:""`
	confirmed
}

// Run deletes the records, each by itself: one that refuses does not keep the others.
func (cmd deleteAskingCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return nounOf(a.command).delete(ctx, a, c, cmd.Refs, cmd.confirmed)
}

// nameArguments calls the arguments of generic commands by their nouns.
func nameArguments(command *kong.Node) {
	generic := []reflect.Type{reflect.TypeFor[getCmd](), reflect.TypeFor[deleteCmd](), reflect.TypeFor[deleteAskingCmd](), reflect.TypeFor[actCmd]()}
	for _, child := range command.Children {
		nameArguments(child)
		for _, t := range generic {
			if child.Target.IsValid() && child.Target.Type() == t {
				argument := child.Positional[0]
				argument.Name, argument.Help = command.Name, nounOf(child).help(argument.IsCumulative())
				if command.Name == "raft" {
					argument.Name = "member"
				}
			}
		}
	}
}

func (n noun[T, L]) help(many bool) string {
	text, name := n.called()+" of the "+n.kind, ", or its name where only one has it"
	if many {
		text, name = n.called()+"s of "+plural(n.kind), ", or names where only one has them"
	}
	if n.bare {
		name = ""
	}
	return text + name + "."
}

func (n noun[T, L]) called() string { return first(n.ids, "Id") }

// table shows records in rows.
func (n noun[T, L]) table(a *app, records ...T) string {
	var rows [][]string
	for _, r := range records {
		rows = append(rows, n.row(r, a.now()))
	}
	return table(n.columns, rows)
}

// show shows the record that a change answers, in a table of one row.
func (n noun[T, L]) show(a *app, record client.Answer[T], err error) error {
	return reply(a, record, err, func(r T) string { return n.table(a, r) })
}

// showOne shows all that is known of a record.
func (n noun[T, L]) showOne(a *app, record client.Answer[T], err error) error {
	if n.sheet == nil {
		return n.show(a, record, err)
	}
	return reply(a, record, err, func(r T) string { return n.sheet(r, a.now()) })
}

// showList shows a list.
func (n noun[T, L]) showList(a *app, list client.Answer[L], err error) error {
	return reply(a, list, err, func(l L) string { return n.table(a, n.items(l)...) })
}

func (n noun[T, L]) list(ctx context.Context, a *app, c *client.Client) error {
	list, err := n.all(c, ctx)
	return n.showList(a, list, err)
}

func (n noun[T, L]) get(ctx context.Context, a *app, c *client.Client, ref string) error {
	return n.on(ctx, c, ref, func(id string) error {
		record, err := n.one(c, ctx, id)
		return n.showOne(a, record, err)
	})
}

func (n noun[T, L]) delete(ctx context.Context, a *app, c *client.Client, refs []string, sure confirmed) error {
	return n.each(ctx, a, c, refs, func(id string) error {
		if n.loss != "" && !sure.Yes && terminalOf(a.in) != nil {
			got, err := n.one(c, ctx, id)
			if err == nil {
				err = sure.ask(ctx, a, fmt.Sprintf("Delete %s %s (%s) with %s?", n.kind, printable(n.thing(got.Value).name), printable(id), n.loss))
			}
			if err != nil {
				return err
			}
		}
		if err := n.remove(c, ctx, id); err != nil {
			return err
		}
		return a.done("deleted", id)
	})
}

// each calls f with the id of each record that refs name. One that fails does not keep the others.
func (n noun[T, L]) each(ctx context.Context, a *app, c *client.Client, refs []string, f func(id string) error) error {
	var faults []error
	for _, ref := range refs {
		err := n.on(ctx, c, ref, f)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		faults = append(faults, named(err, ref, len(refs)))
	}
	return a.several(faults)
}

// create makes a record once under a key, which is a new one when key is empty.
func (n noun[T, L]) create(a *app, c *client.Client, key string, call func(*client.Client) (client.Answer[T], error)) (client.Answer[T], error) {
	key = onceKey(key)
	record, err := call(c.Keyed(key))
	if err != nil {
		return record, a.uncertain(err, key)
	}
	a.sayReplayed(record.Replayed, n.thing(record.Value).id)
	return record, nil
}

// things returns the ids and names of the records.
func (n noun[T, L]) things(ctx context.Context, c *client.Client) ([]thing, error) {
	list, err := n.all(c, ctx)
	if err != nil {
		return nil, err
	}
	var out []thing
	for _, r := range n.items(list.Value) {
		out = append(out, n.thing(r))
	}
	return out, nil
}

// find returns the record with an id, and whether there is one.
func (n noun[T, L]) find(ctx context.Context, c *client.Client, id string) (record T, known bool, err error) {
	list, err := n.all(c, ctx)
	if err != nil {
		return record, false, err
	}
	for _, r := range n.items(list.Value) {
		if n.thing(r).id == id {
			return r, true, nil
		}
	}
	return record, false, nil
}

// reply shows the answer of a call, unless it failed.
func reply[T any](a *app, answer client.Answer[T], err error, people func(T) string) error {
	if err != nil {
		return err
	}
	return a.show(answer.Raw, func() string { return people(answer.Value) })
}

// view makes a command that shows the answer of one call.
func view[T any](call func(*client.Client, context.Context) (client.Answer[T], error), people func(T) string) func(context.Context, *app, *client.Client) error {
	return func(ctx context.Context, a *app, c *client.Client) error {
		answer, err := call(c, ctx)
		return reply(a, answer, err, people)
	}
}

// views are the commands without arguments that show one thing.
func views() map[string]func(context.Context, *app, *client.Client) error {
	return map[string]func(context.Context, *app, *client.Client) error{
		"account show":             view((*client.Client).OwnAccount, ownAccountSheet),
		"net list":                 view((*client.Client).Networks, networksText),
		"host capacity":            view((*client.Client).Capacity, capacityText),
		"raft ca show":             view((*client.Client).CA, caText),
		"raft clock show":          view((*client.Client).Cluster, clockText),
		"admin network get":        view((*client.Client).NetworkSettings, networkSheet),
		"admin object-storage get": view((*client.Client).ObjectStore, objectsSheet),
		"admin placement get":      view((*client.Client).Placement, placementSheet),
		"admin storage-prices get": view((*client.Client).StoragePrices, storageSheet),
	}
}

// viewCmd is one of views.
type viewCmd struct{}

// Run shows it.
func (viewCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return views()[pathOf(a.command)](ctx, a, c)
}

// act makes a command that does something with one record.
func (n noun[T, L]) act(call func(*client.Client, context.Context, string) (client.Answer[T], error), people func(T) string) func(context.Context, *app, *client.Client, string) error {
	return func(ctx context.Context, a *app, c *client.Client, ref string) error {
		return n.on(ctx, c, ref, func(id string) error {
			record, err := call(c, ctx, id)
			if people == nil {
				return n.show(a, record, err)
			}
			return reply(a, record, err, people)
		})
	}
}

// acts are the commands that do something with one record and have no flags.
func acts() map[string]func(context.Context, *app, *client.Client, string) error {
	return map[string]func(context.Context, *app, *client.Client, string) error{
		"account resume": accounts.act((*client.Client).ResumeAccount, nil),
		"host cordon":    hosts.act((*client.Client).CordonHost, sayState),
		"host uncordon":  hosts.act((*client.Client).UncordonHost, sayState),
		"host ack-alarm": hosts.act((*client.Client).AckHostAlarm, func(h admin.Host) string {
			return fmt.Sprintf("%s (%s) has no alarm\n", printable(h.ID), printable(h.Name))
		}),
		"host pods":       hostPods,
		"gateway drain":   gateways.act((*client.Client).DrainGateway, sayGateway),
		"gateway undrain": gateways.act((*client.Client).UndrainGateway, sayGateway),
		"raft promote":    changeMember("promoted", (*client.Client).PromoteMember),
		"raft demote":     changeMember("demoted", (*client.Client).DemoteMember),
	}
}

// actCmd is one of acts.
type actCmd struct {
	Ref string `arg:""`
}

// Run does it.
func (cmd actCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return acts()[pathOf(a.command)](ctx, a, c, cmd.Ref)
}
