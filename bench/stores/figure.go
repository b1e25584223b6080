package main

import (
	"fmt"
	"image/color"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

var (
	oursColor   = color.RGBA{R: 0x1f, G: 0x5f, B: 0xa8, A: 0xff}
	theirsColor = color.RGBA{R: 0xb8, G: 0xb8, B: 0xb8, A: 0xff}
)

// them is who is compared with, for each store.
var them = map[string]string{"Postgres": "pgbench, the same statements", "Redis": "redis-benchmark, SET and GET"}

// drawFigure draws the speeds as bars, a panel for each store and each thing that it
// does.
func drawFigure(speeds []speed, file string) error {
	stores := []string{"SQLite", "Postgres", "Redis"}
	whats := []string{"executions", "replays"}
	panels := make([][]*plot.Plot, len(whats))
	for i, what := range whats {
		for _, store := range stores {
			p, err := panel(speeds, store, what)
			if err != nil {
				return err
			}
			panels[i] = append(panels[i], p)
		}
	}
	const width, height = 26 * vg.Centimeter, 16 * vg.Centimeter
	canvas := vgsvg.New(width, height)
	dc := draw.New(canvas)
	dc.SetColor(color.White)
	dc.Fill(dc.Rectangle.Path())
	tiles := draw.Tiles{Rows: len(whats), Cols: len(stores), PadX: vg.Centimeter, PadY: vg.Centimeter,
		PadTop: 3 * vg.Millimeter, PadBottom: 3 * vg.Millimeter, PadLeft: 3 * vg.Millimeter, PadRight: 5 * vg.Millimeter}
	for i, row := range plot.Align(panels, tiles, dc) {
		for j, c := range row {
			panels[i][j].Draw(c)
		}
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func panel(speeds []speed, store, what string) (*plot.Plot, error) {
	speeds = slices.DeleteFunc(slices.Clone(speeds), func(s speed) bool { return s.store != store || s.what != what })
	if len(speeds) == 0 {
		return nil, fmt.Errorf("-figure: %s of %s were not measured; it needs the sections sqlite, postgres and redis", what, store)
	}
	p := plot.New()
	p.Title.Text = store + ", " + what
	p.Y.Label.Text = "a second"
	p.X.Label.Text = "at a time"
	p.Y.Min = 0
	var ours, theirs plotter.Values
	var names []string
	for _, s := range speeds {
		ours, theirs = append(ours, s.ours), append(theirs, s.theirs)
		names = append(names, fmt.Sprint(s.callers))
	}
	const width = 20
	us, err := bars(ours, width, oursColor)
	if err != nil {
		return nil, err
	}
	p.Add(us)
	p.Legend.Add("oncehttp", us)
	if other := them[store]; other != "" {
		they, err := bars(theirs, width, theirsColor)
		if err != nil {
			return nil, err
		}
		us.Offset, they.Offset = -width/2, width/2
		p.Add(they)
		p.Legend.Add(other, they)
	}
	p.Y.Max *= 1.3 // room for the legend
	p.Legend.Top, p.Legend.Left = true, true
	p.X.Min, p.X.Max = -0.6, float64(len(names))-0.4
	p.NominalX(names...)
	p.Y.Tick.Marker = rates{}
	style(p)
	return p, nil
}

func bars(v plotter.Values, width vg.Length, c color.Color) (*plotter.BarChart, error) {
	b, err := plotter.NewBarChart(v, width)
	if err != nil {
		return nil, err
	}
	b.Color, b.LineStyle.Width = c, 0
	return b, nil
}

// style sets a plot in one sans serif.
func style(p *plot.Plot) {
	for _, s := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		s.Font.Variant, s.Font.Size = "Sans", 9
	}
	p.Title.TextStyle.Font.Size = 12
	p.Title.Padding = 2 * vg.Millimeter
}

// rates are tick marks that read as the tables do.
type rates struct{}

// Ticks implements plot.Ticker.
func (rates) Ticks(least, most float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(least, most)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = thousands(ticks[i].Value)
		}
	}
	return ticks
}
