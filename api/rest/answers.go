package rest

import "gantry/fleet"

// show makes the record of what a call of the service returned.
func show[In, Out any](record func(In) Out) func(In, error) (*Out, error) {
	return func(v In, err error) (*Out, error) {
		if err != nil {
			return nil, err
		}
		out := record(v)
		return &out, nil
	}
}

// showAll makes the records of what a call of the service returned; none are an empty list.
func showAll[In, Out any](record func(In) Out) func([]In, error) ([]Out, error) {
	return func(all []In, err error) ([]Out, error) {
		out := make([]Out, 0, len(all))
		for _, v := range all {
			out = append(out, record(v))
		}
		return out, err
	}
}

// pathID returns the {id} of the path; what has not the form of an identifier cannot exist, unless the id is a name: a string.
func pathID[ID ~string](c *call, kind string) (ID, error) {
	id := ID(c.args.text("id"))
	if _, name := any(id).(string); !name && !fleet.ValidID(string(id)) {
		return "", fleet.NotFound(kind)
	}
	return id, nil
}
