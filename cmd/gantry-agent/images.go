package main

import (
	"errors"

	"gantry/agent/ctrd"
	"gantry/agent/images"
)

var _ images.Store = (*ctrd.Runtime)(nil)

// imageFlags say how much room images may take.
type imageFlags struct {
	ImageGCHigh int   `name:"image-gc-high" default:"85" help:"Start to remove unused images when their file system is this full, in percent (2 to 99); 0: never."`
	ImageGCLow  int   `name:"image-gc-low" default:"75" help:"Remove unused images until their file system is no fuller than this, in percent (1 to 98, less than --image-gc-high)."`
	MaxImageGB  int64 `name:"max-image-gb" default:"200" help:"Refuse images that are larger than this to download, in GB (1 to 10000)."`
}

// validate reports every setting that is out of its range.
func (f *imageFlags) validate() error {
	var faults []error
	if f.ImageGCHigh != 0 && (f.ImageGCHigh < 2 || f.ImageGCHigh > 99) {
		faults = append(faults, errors.New("--image-gc-high must be 2 to 99, or 0"))
	}
	if f.ImageGCHigh != 0 && (f.ImageGCLow < 1 || f.ImageGCLow >= f.ImageGCHigh) {
		faults = append(faults, errors.New("--image-gc-low must be at least 1 and less than --image-gc-high"))
	}
	if f.MaxImageGB < 1 || f.MaxImageGB > 10_000 {
		faults = append(faults, errors.New("--max-image-gb must be 1 to 10000"))
	}
	return errors.Join(faults...)
}

// room returns what the agent is told of the file system of images.
func (f *imageFlags) room() images.Marks {
	return images.Marks{High: f.ImageGCHigh, Low: f.ImageGCLow}
}

// maxBytes returns the size of the largest image to download, compressed.
func (f *imageFlags) maxBytes() int64 { return f.MaxImageGB * 1_000_000_000 }
