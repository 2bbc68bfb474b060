package state

import (
	"reflect"
	"testing"
)

// TestClonesShareNothing fills every field that can be shared, and looks at each pointer, list and map of the clone.
func TestClonesShareNothing(t *testing.T) {
	for _, pair := range [][2]any{
		cloned(clonePod), cloned(cloneHost), cloned(cloneKey), cloned(cloneAccount), cloned(cloneCenter), cloned(cloneTemplate),
		cloned(cloneEndpoint), cloned(cloneRegistry), cloned(cloneSecret), cloned(cloneBackend), cloned(cloneS3Key),
		cloned(cloneNetworkSettings), cloned(cloneVolume), cloned(cloneToken), cloned(cloneCatalog), cloned(cloneCluster), cloned(cloneModel),
		cloned(cloneWebhook), cloned(cloneCUDA),
	} {
		had, clone := reflect.ValueOf(pair[0]), reflect.ValueOf(pair[1])
		if clone.Kind() != reflect.Pointer {
			had = had.Elem()
		}
		if !reflect.DeepEqual(had.Interface(), clone.Interface()) {
			t.Errorf("the clone of a %s differs", had.Type())
		}
		checkShared(t, had.Type().String(), had, clone)
	}
}

// cloned makes a record with every field set, and its clone.
func cloned[T, C any](clone func(*T) C) [2]any {
	record := new(T)
	fill(reflect.ValueOf(record).Elem())
	return [2]any{record, clone(record)}
}

// fill sets what a clone could share: each pointer, and one element of each list and map.
func fill(v reflect.Value) {
	switch {
	case !v.CanSet():
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(value)
		v.SetMapIndex(key, value)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("cbor") != "-" { // no record has those
				fill(v.Field(i)) // which does nothing to fields of other packages that are not exported
			}
		}
	}
}

func checkShared(t *testing.T, path string, a, b reflect.Value) {
	t.Helper()
	switch a.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		if a.IsNil() {
			return
		}
		if a.UnsafePointer() == b.UnsafePointer() {
			t.Errorf("%s is shared", path)
			return
		}
	}
	switch a.Kind() {
	case reflect.Pointer:
		checkShared(t, path, a.Elem(), b.Elem())
	case reflect.Slice:
		checkShared(t, path+"[0]", a.Index(0), b.Index(0))
	case reflect.Struct:
		for i := range a.NumField() {
			checkShared(t, path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
		}
	}
}
