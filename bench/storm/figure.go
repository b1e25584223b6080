package storm

import (
	"image/color"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// What a figure shows, in seconds around the start and the end of the outage, and
// over how many seconds each point is an average.
const (
	figureBefore = 20
	figureAfter  = 40
	smooth       = 5
)

// Colours that can be told apart on white, also by those who see fewer of them;
// the first is this library's, the last that of what never retries.
var colours = []color.Color{
	color.RGBA{0xc0, 0x1c, 0x28, 0xff},
	color.RGBA{0x00, 0x72, 0xb2, 0xff},
	color.RGBA{0x00, 0x9e, 0x73, 0xff},
	color.RGBA{0xe6, 0x9f, 0x00, 0xff},
	color.RGBA{0x99, 0x4f, 0xa0, 0xff},
	color.RGBA{0x56, 0xb4, 0xe9, 0xff},
	color.RGBA{0x77, 0x77, 0x77, 0xff},
}

// Draw writes the figure of one outage into dir: the load on the service above,
// and how many of the actions that were begun succeeded below, of all peers.
func Draw(dir string, runs []*Run) error {
	c := runs[0].Config
	load, success := plot.New(), plot.New()
	load.Title.Text = runs[0].Outage.Title()
	load.Y.Label.Text = "load / full capacity"
	success.Y.Label.Text = "actions that succeed, %"
	success.X.Label.Text = "seconds since the outage began"
	success.Y.Min, success.Y.Max = 0, 105
	load.Y.Min, load.Y.Max = 0, 2.1 // the legend is above the lines
	for _, p := range []*plot.Plot{load, success} {
		p.X.Min, p.X.Max = -figureBefore, (c.Until-c.From).Seconds()+figureAfter
		p.X.Tick.Marker, p.Y.Tick.Marker = plot.DefaultTicks{}, plot.DefaultTicks{}
		p.Add(plotter.NewGrid())
	}
	limit, err := plotter.NewLine(able(runs[0]))
	if err != nil {
		return err
	}
	limit.Color, limit.Dashes, limit.Width = color.Black, []vg.Length{vg.Points(6), vg.Points(3)}, vg.Points(1)
	load.Add(limit)
	load.Legend.Add("capacity", limit)
	for i := len(runs) - 1; i >= 0; i-- { // ours on top
		above, err := line(runs[i], i, func(r *Run, from, to int) float64 {
			return float64(total(r.Sends[from:to])) / float64(to-from) / (capacity * c.scale())
		})
		if err != nil {
			return err
		}
		below, err := line(runs[i], i, func(r *Run, from, to int) float64 {
			return 100 * ratio(total(r.Good[from:to]), total(r.Begun[from:to]))
		})
		if err != nil {
			return err
		}
		load.Add(above)
		success.Add(below)
		load.Legend.Add(runs[i].Peer.Name, above)
	}
	load.Legend.Top, load.Legend.XOffs = true, vg.Points(-4)
	return save(filepath.Join(dir, "storm-"+runs[0].Outage.Name()+".svg"), load, success)
}

func line(r *Run, peer int, of func(r *Run, from, to int) float64) (*plotter.Line, error) {
	from, until := int(r.Config.From.Seconds()), int(r.Config.Until.Seconds())
	var points plotter.XYs
	for sec := from - figureBefore; sec < until+figureAfter; sec++ {
		a, b := max(sec-smooth/2, 0), min(sec+smooth/2+1, len(r.Sends))
		points = append(points, plotter.XY{X: float64(sec-from) + 0.5, Y: of(r, a, b)})
	}
	l, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	l.Color, l.Width = colours[peer%len(colours)], vg.Points(1.3)
	if peer == 0 {
		l.Width = vg.Points(2.6)
	}
	return l, nil
}

// able is what the service is able to do, over time.
func able(r *Run) plotter.XYs {
	long := (r.Config.Until - r.Config.From).Seconds()
	left := map[Kind]float64{None: 1, Down: 0, Slow: 1.0 / slowness, BrownOut: 0.5}[r.Outage.Kind]
	return plotter.XYs{
		{X: -figureBefore, Y: 1}, {X: 0, Y: 1}, {X: 0, Y: left},
		{X: long, Y: left}, {X: long, Y: 1}, {X: long + figureAfter, Y: 1},
	}
}

// save draws one plot above the other, on white: on a dark page, too, the lines
// keep the background that they were chosen for.
func save(name string, above, below *plot.Plot) error {
	const width, upper, lower = 860, 330, 220
	canvas := vgsvg.New(vg.Points(width), vg.Points(upper+lower))
	dc := draw.New(canvas)
	dc.SetColor(color.White)
	dc.Fill(dc.Rectangle.Path())
	top := draw.Crop(dc, vg.Points(8), vg.Points(-8), vg.Points(lower), vg.Points(-6))
	bottom := draw.Crop(dc, vg.Points(8), vg.Points(-8), vg.Points(6), vg.Points(-upper))
	above.Draw(top)
	below.Draw(bottom)
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := canvas.WriteTo(f); err != nil {
		return err
	}
	return f.Close()
}
