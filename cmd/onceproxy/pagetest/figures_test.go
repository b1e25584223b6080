package pagetest

import (
	"bytes"
	"cmp"
	"flag"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
)

var figures = flag.String("figures", "", "keep pictures of the pages in this `folder`")

// keep writes a picture with the 256 colours that it has most of. A page has few, and
// its file is a third as large then.
func keep(dir, name string, shot []byte) error {
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return err
	}
	small := image.NewPaletted(full.Bounds(), palette(full))
	nearest := map[color.RGBA]uint8{}
	for y := full.Bounds().Min.Y; y < full.Bounds().Max.Y; y++ {
		for x := full.Bounds().Min.X; x < full.Bounds().Max.X; x++ {
			c := color.RGBAModel.Convert(full.At(x, y)).(color.RGBA)
			i, ok := nearest[c]
			if !ok {
				i = uint8(small.Palette.Index(c))
				nearest[c] = i
			}
			small.SetColorIndex(x, y, i)
		}
	}
	var b bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, small); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644)
}

// palette returns the most frequent colours of a picture.
func palette(m image.Image) color.Palette {
	count := map[color.RGBA]int{}
	for y := m.Bounds().Min.Y; y < m.Bounds().Max.Y; y++ {
		for x := m.Bounds().Min.X; x < m.Bounds().Max.X; x++ {
			count[color.RGBAModel.Convert(m.At(x, y)).(color.RGBA)]++
		}
	}
	all := make([]color.RGBA, 0, len(count))
	for c := range count {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b color.RGBA) int {
		return cmp.Or(count[b]-count[a], cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	var p color.Palette
	for _, c := range all[:min(len(all), 256)] {
		p = append(p, c)
	}
	return p
}
