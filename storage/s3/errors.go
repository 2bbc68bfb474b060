package s3

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// fault is an answer of S3's error form. Its message is meant for the client.
type fault struct {
	status  int
	code    string
	message string
	region  string // of AuthorizationHeaderMalformed
	cause   error  // for the log alone
}

func (f *fault) Error() string {
	if f.cause != nil {
		return f.code + ": " + f.cause.Error()
	}
	return f.code + ": " + f.message
}

func (f *fault) Unwrap() error { return f.cause }

func refuse(status int, code, message string) *fault {
	return &fault{status: status, code: code, message: message}
}

func invalid(message string) *fault { return refuse(http.StatusBadRequest, "InvalidArgument", message) }

func malformedXML() *fault {
	return refuse(http.StatusBadRequest, "MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema.")
}

func accessDenied(message string) *fault {
	return refuse(http.StatusForbidden, "AccessDenied", message)
}

func noSuchKey() *fault {
	return refuse(http.StatusNotFound, "NoSuchKey", "The specified key does not exist.")
}

func noSuchBucket() *fault {
	return refuse(http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist.")
}

func noSuchUpload() *fault {
	return refuse(http.StatusNotFound, "NoSuchUpload", "The specified multipart upload does not exist. It may have been aborted or completed.")
}

func notImplemented(what string) *fault {
	return refuse(http.StatusNotImplemented, "NotImplemented", what+" is not supported by network volumes.")
}

func slowDown() *fault {
	return refuse(http.StatusServiceUnavailable, "SlowDown", "Too many requests for this volume are under way. Reduce your request rate.")
}

func unavailable(cause error) *fault {
	return &fault{status: http.StatusServiceUnavailable, code: "ServiceUnavailable", message: "The storage does not answer. Try again.", cause: cause}
}

func preconditionFailed() *fault {
	return refuse(http.StatusPreconditionFailed, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
}

func isFolderFault() *fault {
	return refuse(http.StatusConflict, "ExistingObjectIsDirectory", "The key names a folder of the volume.")
}

func throughFile() *fault {
	return refuse(http.StatusConflict, "ObjectParentIsFile", "A part of the key's path is a file of the volume.")
}

// errNotObject says that a name stands for something that is no object: a folder, a pipe, a device.
var errNotObject = errors.New("no regular file")

// faultOf returns the answer to an error of any kind.
func faultOf(err error) *fault {
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	var tooBig *http.MaxBytesError
	var timeout net.Error
	switch {
	case errors.As(err, &tooBig):
		return refuse(http.StatusBadRequest, "EntityTooLarge", "The body is too large.")
	case errors.Is(err, errNotObject):
		return noSuchKey()
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return refuse(http.StatusBadRequest, "IncompleteBody", "The body ended before the length that was announced.")
	case errors.Is(err, context.Canceled):
		return refuse(http.StatusBadRequest, "RequestTimeout", "The client stopped sending.")
	}
	if out := faultOfFile(err); out != nil {
		return out
	}
	if errors.As(err, &timeout) {
		return refuse(http.StatusBadRequest, "RequestTimeout", "The client stopped sending.")
	}
	return &fault{status: http.StatusInternalServerError, code: "InternalError", message: "An internal error occurred. Try again.", cause: err}
}

// faultOfFile returns the answer to an error of the file system, or nil.
func faultOfFile(err error) *fault {
	is := func(codes ...unix.Errno) bool {
		for _, c := range codes {
			if errors.Is(err, c) {
				return true
			}
		}
		return false
	}
	switch {
	case is(unix.ENOSPC, unix.EDQUOT):
		return &fault{status: http.StatusInsufficientStorage, code: "QuotaExceeded", message: "The volume is full.", cause: err}
	case is(unix.EROFS):
		return accessDenied("The volume cannot be written now.")
	case is(unix.ENAMETOOLONG):
		return refuse(http.StatusBadRequest, "KeyTooLongError", "The key or a part of it is too long.")
	case is(unix.EFBIG):
		return refuse(http.StatusBadRequest, "EntityTooLarge", "The object is larger than the file system allows.")
	case is(unix.ELOOP), escapes(err):
		return accessDenied("The key leads through a link that leaves the volume or goes round.")
	case is(unix.EPERM, unix.EACCES):
		return &fault{status: http.StatusForbidden, code: "AccessDenied", message: "The file system denies access to this file.", cause: err}
	case is(unix.EISDIR):
		return isFolderFault()
	case is(unix.ENOTDIR), errors.Is(err, fs.ErrNotExist):
		return noSuchKey()
	case is(unix.EAGAIN, unix.EBUSY, unix.ETXTBSY, unix.EMFILE, unix.ENFILE, unix.ENOMEM):
		out := slowDown()
		out.cause = err
		return out
	case is(unix.ESTALE, unix.EIO, unix.ENOTCONN, unix.ETIMEDOUT, unix.EHOSTDOWN, unix.ESHUTDOWN, unix.ENODEV):
		return unavailable(err)
	}
	return nil
}

// escapes reports whether os.Root refused a path. It has no error value for that.
func escapes(err error) bool {
	var p *fs.PathError
	var l *os.LinkError
	switch {
	case errors.As(err, &p):
		return p.Err != nil && strings.Contains(p.Err.Error(), "escapes from parent")
	case errors.As(err, &l):
		return l.Err != nil && strings.Contains(l.Err.Error(), "escapes from parent")
	}
	return false
}

// broken reports whether a folder has to be opened anew.
func broken(err error) bool {
	for _, code := range []unix.Errno{unix.ESTALE, unix.ENOTCONN, unix.ESHUTDOWN, unix.EIO, unix.ENODEV} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

type errorXML struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	Resource  string `xml:",omitempty"`
	Region    string `xml:",omitempty"`
	RequestID string `xml:"RequestId"`
}

// fail answers with an error, unless the answer has begun.
func (x *exchange) fail(err error) {
	f := faultOf(err)
	if broken(err) && x.place != nil && x.place.folder.Broken != nil {
		x.place.folder.Broken()
	}
	if f.status >= http.StatusInternalServerError || f.cause != nil {
		x.h.log.Warn("s3 request failed", "request", x.id, "method", x.r.Method, "bucket", x.bucket, "code", f.code, "error", f.Error())
	}
	if x.begun {
		return
	}
	header := x.w.Header()
	for _, name := range []string{"Content-Length", "Content-Range", "Etag", "Last-Modified", "Accept-Ranges", "Content-Encoding", "Cache-Control", "Content-Disposition", "Content-Language", "Expires"} {
		if f.status != http.StatusNotModified && (name != "Content-Range" || f.status != http.StatusRequestedRangeNotSatisfiable) {
			header.Del(name)
		}
	}
	if f.status == http.StatusServiceUnavailable {
		header.Set("Retry-After", "1")
	}
	if f.status == http.StatusNotModified || x.r.Method == http.MethodHead {
		header.Del("Content-Type")
		x.begin(f.status)
		return
	}
	x.answer(f.status, errorXML{Code: f.code, Message: f.message, Resource: x.r.URL.Path, Region: f.region, RequestID: x.id})
}
