package dev

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
)

// The sizes of a drawing, in pixels.
const (
	leastSide   = 16
	mostSide    = 1024
	defaultSide = 512
	discs       = 12
)

// sampleNote says what a drawing is.
const sampleNote = "This is a sample: it draws shapes whose colors and places follow from the letters of the prompt. It is no model."

// drawing is what the sample worker answers to a prompt, as image workers do: the picture is a data URL.
type drawing struct {
	Image      string  `json:"image_url"`
	Megapixels float64 `json:"megapixels"`
	Note       string  `json:"note"`
}

// draw answers a prompt with a picture of a size; 0: the usual one. The same prompt gives the same picture.
func draw(prompt string, width, height int) (drawing, error) {
	width, height = side(width), side(height)
	sum := sha256.Sum256([]byte(prompt))
	dice := rand.New(rand.NewPCG(binary.BigEndian.Uint64(sum[:8]), binary.BigEndian.Uint64(sum[8:16]))) //nolint:gosec // a picture is no secret
	picture := image.NewNRGBA(image.Rect(0, 0, width, height))
	top, bottom := paint(dice), paint(dice)
	for y := range height {
		row := mix(top, bottom, float64(y)/float64(height))
		for x := range width {
			picture.SetNRGBA(x, y, row)
		}
	}
	for range discs {
		disc(picture, dice.IntN(width), dice.IntN(height), max(2, dice.IntN(min(width, height)/3)), paint(dice))
	}
	var out bytes.Buffer
	if err := png.Encode(&out, picture); err != nil {
		return drawing{}, err
	}
	return drawing{
		Image: "data:image/png;base64," + base64.StdEncoding.EncodeToString(out.Bytes()), Megapixels: float64(width*height) / 1e6, Note: sampleNote,
	}, nil
}

func side(pixels int) int {
	if pixels == 0 {
		return defaultSide
	}
	return min(max(pixels, leastSide), mostSide)
}

func paint(dice *rand.Rand) color.NRGBA {
	return color.NRGBA{uint8(dice.IntN(256)), uint8(dice.IntN(256)), uint8(dice.IntN(256)), 255} //nolint:gosec // below 256
}

// mix returns a color between two.
func mix(a, b color.NRGBA, part float64) color.NRGBA {
	between := func(x, y uint8) uint8 { return uint8(math.Round(float64(x) + (float64(y)-float64(x))*part)) }
	return color.NRGBA{between(a.R, b.R), between(a.G, b.G), between(a.B, b.B), 255}
}

// disc draws a disc over what is there, which shines through.
func disc(on *image.NRGBA, centerX, centerY, radius int, of color.NRGBA) {
	for y := centerY - radius; y <= centerY+radius; y++ {
		for x := centerX - radius; x <= centerX+radius; x++ {
			if dx, dy := x-centerX, y-centerY; dx*dx+dy*dy <= radius*radius && image.Pt(x, y).In(on.Rect) {
				on.SetNRGBA(x, y, mix(on.NRGBAAt(x, y), of, 0.6))
			}
		}
	}
}
