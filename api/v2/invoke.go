package v2

import "encoding/json"

// InvokeAll is the word that stands for every endpoint.
const InvokeAll = "all"

// Invoke tells the endpoints whose jobs a key may submit: the word all, or a list of ids.
type Invoke struct {
	All   bool
	IDs   []string
	Wrong bool // what was read is neither
}

// IsZero reports whether the member is left out of a request.
func (v Invoke) IsZero() bool { return !v.All && v.IDs == nil && !v.Wrong }

// MarshalJSON writes the word or the list.
func (v Invoke) MarshalJSON() ([]byte, error) {
	if v.All {
		return json.Marshal(InvokeAll)
	}
	return json.Marshal(append([]string{}, v.IDs...))
}

// UnmarshalJSON reads either form and remembers whether it was none.
func (v *Invoke) UnmarshalJSON(data []byte) error {
	*v = Invoke{}
	var word string
	if json.Unmarshal(data, &word) == nil {
		v.All, v.Wrong = word == InvokeAll, word != InvokeAll
		return nil
	}
	v.IDs = []string{}
	v.Wrong = json.Unmarshal(data, &v.IDs) != nil
	return nil
}
