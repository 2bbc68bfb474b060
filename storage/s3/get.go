package s3

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// piece is how much a client may take before it must have taken something for a while.
const piece = 4 << 20

// getObject answers GET and HEAD of an object.
func (x *exchange) getObject() error {
	t, err := parseKey(x.key)
	if err != nil {
		return err
	}
	var f *os.File
	var o object
	err = x.place.act(func() error {
		var err error
		f, o, err = x.place.open(t)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	size := o.size()
	x.describe(o, t)
	if err := readable(x.r.Header, "", o); err != nil {
		return err
	}
	from, length, sum, err := x.asked(o, size)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if from >= 0 {
		status = http.StatusPartialContent
		if length > 0 {
			x.w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, from+length-1, size))
		}
	}
	if strings.EqualFold(x.r.Header.Get("X-Amz-Checksum-Mode"), "ENABLED") {
		setChecksum(x.w.Header(), sum, o.record.Checksum)
	}
	x.w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	if x.r.Method == http.MethodHead || length == 0 {
		return x.empty(status)
	}
	return x.send(f, status, max(from, 0), length)
}

// asked returns the part of an object that a request asks for, and what its checksum is, where that is known. From is
// negative when the whole object is asked for.
func (x *exchange) asked(o object, size int64) (from, length int64, sum string, err error) {
	if !x.query.Has("partNumber") {
		if from, length, err = x.byteRange(o, size); from < 0 {
			sum = o.record.Checksum
		}
		return from, length, sum, err
	}
	number, err := x.partNumber()
	if err != nil {
		return 0, 0, "", err
	}
	if x.r.Header.Get("Range") != "" {
		return 0, 0, "", refuse(http.StatusBadRequest, "InvalidRequest", "Cannot specify both Range header and partNumber query parameter.")
	}
	parts, known := o.parts()
	switch {
	case !known:
		return 0, 0, "", notImplemented("The part number of an object of so many different parts")
	case number > max(len(parts), 1):
		return 0, 0, "", invalidPart()
	case len(parts) == 0:
		return -1, size, o.record.Checksum, nil
	}
	x.w.Header().Set("x-amz-mp-parts-count", strconv.Itoa(len(parts)))
	for _, p := range parts[:number-1] {
		from += p.size
	}
	return from, parts[number-1].size, parts[number-1].checksum, nil
}

// send sends a part of a file. When the file is shorter now, the connection ends early.
func (x *exchange) send(f *os.File, status int, from, length int64) error {
	if from > 0 {
		if _, err := f.Seek(from, io.SeekStart); err != nil {
			return err
		}
	}
	x.begin(status)
	for length > 0 {
		x.awaken(false)
		// The kernel copies: net/http hands the file to the connection.
		n, err := io.CopyN(x.w, f, min(length, piece))
		length -= n
		if err != nil {
			if faultOfFile(err) != nil {
				x.h.log.Info("s3 object was sent only in part", "request", x.id, "error", err)
			}
			return nil
		}
	}
	return nil
}

// describe sets the headers of an object.
func (x *exchange) describe(o object, t target) {
	header := x.w.Header()
	header.Set("Content-Type", "binary/octet-stream")
	if t.folder {
		header.Set("Content-Type", "application/x-directory")
	}
	for name, value := range o.record.Headers {
		header.Set(name, value)
	}
	for name, value := range o.record.Meta {
		header["x-amz-meta-"+name] = []string{value} // in lower case: clients take the name as they hear it
	}
	for _, name := range keptHeaders {
		if value := x.query.Get("response-" + name); value != "" && validValue(value) {
			header.Set(name, value)
		}
	}
	header.Set("ETag", quote(o.etag))
	header.Set("Last-Modified", o.info.ModTime().UTC().Format(http.TimeFormat))
	header.Set("Accept-Ranges", "bytes")
}

func quote(etag string) string { return `"` + etag + `"` }

// matches reports whether a list of ETags, as of If-Match, holds one.
func matches(list, etag string) bool {
	for one := range strings.SplitSeq(list, ",") {
		one = strings.TrimPrefix(strings.TrimSpace(one), "W/")
		if one == "*" || strings.Trim(one, `"`) == etag {
			return true
		}
	}
	return false
}

// readable checks the conditions of a read; those for a copy's source have a prefix and no 304.
func readable(header http.Header, prefix string, o object) error {
	notModified := refuse(http.StatusNotModified, "NotModified", "")
	if prefix != "" {
		notModified = preconditionFailed()
	}
	modified := o.info.ModTime().Truncate(time.Second)
	since := func(name string) (time.Time, bool) {
		at, err := http.ParseTime(header.Get(prefix + name))
		return at, err == nil
	}
	if match := header.Get(prefix + "If-Match"); match != "" {
		if !matches(match, o.etag) {
			return preconditionFailed()
		}
	} else if at, ok := since("If-Unmodified-Since"); ok && modified.After(at) {
		return preconditionFailed()
	}
	if none := header.Get(prefix + "If-None-Match"); none != "" {
		if matches(none, o.etag) {
			return notModified
		}
	} else if at, ok := since("If-Modified-Since"); ok && !modified.After(at) {
		return notModified
	}
	return nil
}

var errNoRange = errors.New("no range")

// byteRange returns the range that is asked for; from is negative when the whole object is.
func (x *exchange) byteRange(o object, size int64) (from, length int64, err error) {
	header := x.r.Header.Get("Range")
	if guard := x.r.Header.Get("If-Range"); guard != "" {
		at, err := http.ParseTime(guard)
		dated := err == nil && !o.info.ModTime().Truncate(time.Second).After(at)
		if !dated && (strings.HasPrefix(guard, "W/") || !matches(guard, o.etag)) {
			header = ""
		}
	}
	from, to, err := parseRange(header, size)
	if errors.Is(err, errNoRange) {
		return -1, size, nil
	}
	if err != nil || from >= size {
		x.w.Header().Set("Content-Range", "bytes */"+strconv.FormatInt(size, 10))
		return 0, 0, refuse(http.StatusRequestedRangeNotSatisfiable, "InvalidRange", "The requested range is not satisfiable.")
	}
	return from, min(to, size-1) - from + 1, nil
}

// parseRange reads a single range. Several, or what makes no sense, are none, as HTTP allows.
func parseRange(header string, size int64) (from, to int64, err error) {
	spec, ok := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || !dash {
		return 0, 0, errNoRange
	}
	number := func(s string) (int64, bool) {
		n, err := strconv.ParseUint(s, 10, 63)
		return int64(n), err == nil //nolint:gosec // 63 bits
	}
	if first == "" {
		n, ok := number(last)
		if !ok {
			return 0, 0, errNoRange
		}
		if n == 0 {
			return size, size, nil
		}
		return max(size-n, 0), size - 1, nil
	}
	from, ok = number(first)
	if !ok {
		return 0, 0, errNoRange
	}
	if last == "" {
		return from, max(size-1, from), nil
	}
	to, ok = number(last)
	if !ok || to < from {
		return 0, 0, errNoRange
	}
	return from, to, nil
}
