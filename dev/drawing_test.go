package dev

import (
	"bytes"
	"encoding/base64"
	"image/png"
	"strings"
	"testing"
)

func TestADrawing(t *testing.T) {
	for _, tt := range []struct{ width, height, wantWidth, wantHeight int }{{0, 0, 512, 512}, {64, 32, 64, 32}, {1, 100_000, 16, 1024}, {-5, 300, 16, 300}} {
		d, err := draw("a cat", tt.width, tt.height)
		if err != nil {
			t.Fatal(err)
		}
		data, ok := strings.CutPrefix(d.Image, "data:image/png;base64,")
		file, err := base64.StdEncoding.DecodeString(data)
		if !ok || err != nil {
			t.Fatalf("%.40s, %v", d.Image, err)
		}
		picture, err := png.Decode(bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		if at := picture.Bounds(); at.Dx() != tt.wantWidth || at.Dy() != tt.wantHeight || d.Megapixels != float64(at.Dx()*at.Dy())/1e6 {
			t.Errorf("%v, %v megapixels", at, d.Megapixels)
		}
		if !strings.Contains(d.Note, "This is a sample") {
			t.Errorf("it says %q", d.Note)
		}
	}
	one, _ := draw("a cat", 64, 64)
	same, _ := draw("a cat", 64, 64)
	other, _ := draw("a dog", 64, 64)
	if one != same || one.Image == other.Image {
		t.Error("a picture does not follow from its prompt")
	}
}
