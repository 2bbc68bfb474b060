package rest

import (
	"context"
	"net/http"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// ObjectStoreService keeps where the files of results of public models are.
type ObjectStoreService interface {
	ObjectStore(ctx context.Context) (fleet.ObjectStoreView, error)
	// PutObjectStore sets it; an empty secret stays as it is.
	PutObjectStore(ctx context.Context, store fleet.ObjectStore, secret fleet.Secret) (fleet.ObjectStoreView, error)
	DeleteObjectStore(ctx context.Context) error
}

func (a *API) registerObjectStore() {
	example := objectStoreRecord(fleet.ObjectStoreView{ObjectStore: fleet.ObjectStore{
		Endpoint: "https://s3.example.com", Region: "EU-RO-1", Bucket: "v4m8q2x6z1k5n9", Prefix: "results/", AccessKey: "user_2mKx7Qw9Zr4Tb6Vn8Ys1Jc3Hd5F",
		AccountBytes: 50 * fleet.GB, AllBytes: 1000 * fleet.GB,
	}, Files: 3, Bytes: 4_000_000})
	const path = "/admin/v1/object-storage"
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	on(a, route{
		method: http.MethodGet, path: path, id: "getObjectStorage", tag: "Operators", summary: "Get where files of results are",
		text:  "Returns the bucket in which the files of results of public models are, and what is in it. The secret is not shown.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: example,
	}, func(ctx context.Context, svc ObjectStoreService, _ *call, _ *none) (*admin.ObjectStore, error) {
		return show(objectStoreRecord)(svc.ObjectStore(ctx))
	})
	on(a, route{
		method: http.MethodPut, path: path, id: "putObjectStorage", tag: "Operators", summary: "Set where files of results are",
		text: "Sets the bucket in which the files of results of public models are, for seven days each. 400: files are in another one. " +
			"422: a value is wrong, or the secret of a new access key is missing.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK,
		in: admin.PutObjectStoreRequest{ObjectStoreSettings: admin.ObjectStoreSettings(example.ObjectStoreShown), Secret: "placeholder"}, out: example,
	}, func(ctx context.Context, svc ObjectStoreService, _ *call, in *admin.PutObjectStoreRequest) (*admin.ObjectStore, error) {
		return show(objectStoreRecord)(svc.PutObjectStore(ctx, fleet.ObjectStore{
			Endpoint: in.Endpoint, Region: in.Region, Bucket: in.Bucket, Prefix: in.Prefix, AccessKey: in.AccessKey,
			AccountBytes: in.AccountGB * fleet.GB, AllBytes: in.AllGB * fleet.GB,
		}, fleet.Secret(in.Secret)))
	})
	on(a, route{
		method: http.MethodDelete, path: path, id: "deleteObjectStorage", tag: "Operators", summary: "Keep no files of results",
		text:  "Takes the bucket away: from then on files stay in results, as workers sent them. 400: files are in it; the last goes seven days after it came.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, errors: []int{http.StatusBadRequest},
	}, func(ctx context.Context, svc ObjectStoreService, _ *call, _ *none) (*none, error) {
		return nil, svc.DeleteObjectStore(ctx)
	})
}

func objectStoreRecord(o fleet.ObjectStoreView) admin.ObjectStore {
	return admin.ObjectStore{
		Files: o.Files, Bytes: o.Bytes,
		ObjectStoreShown: admin.ObjectStoreShown{
			Endpoint: o.Endpoint, Region: o.Region, Bucket: o.Bucket, Prefix: o.Prefix, AccessKey: o.AccessKey,
			AccountGB: o.AccountBytes / fleet.GB, AllGB: o.AllBytes / fleet.GB,
		},
	}
}
