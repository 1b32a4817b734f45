package paged

// Dim repeats a copy. The strides are in bytes.
type Dim struct {
	Count    int
	Src, Dst uint64
}

// Copy is one copy of a plan: runs of Elements neighbouring elements, repeated by Dims, the outermost first. Unused dimensions have a count
// of 1 and come first.
type Copy struct {
	Layer, Part int // of the model
	Src, Dst    Place
	shape
}

// shape is what copies of different layers, parts and blocks have in common.
type shape struct {
	Dims     [3]Dim
	Elements int
}

// Runs is the number of runs of neighbouring elements.
func (s *shape) Runs() int { return s.Dims[0].Count * s.Dims[1].Count * s.Dims[2].Count }

// Each calls f for each run with the offsets at which it begins in both regions.
func (c *Copy) Each(f func(src, dst uint64)) {
	for i := range uint64(c.Dims[0].Count) {
		for j := range uint64(c.Dims[1].Count) {
			src := c.Src.Offset + i*c.Dims[0].Src + j*c.Dims[1].Src
			dst := c.Dst.Offset + i*c.Dims[0].Dst + j*c.Dims[1].Dst
			for range c.Dims[2].Count {
				f(src, dst)
				src += c.Dims[2].Src
				dst += c.Dims[2].Dst
			}
		}
	}
}

// add repeats the shape. It makes the run longer where its repetitions follow each other on both sides, else it takes the innermost
// dimension that is left. srcElement and dstElement are the sizes of an element.
func (s *shape) add(d Dim, srcElement, dstElement uint64) {
	if d.Count == 1 {
		return
	}
	if d.Src == uint64(s.Elements)*srcElement && d.Dst == uint64(s.Elements)*dstElement {
		s.Elements *= d.Count
		return
	}
	free := len(s.Dims) - 1
	for s.Dims[free].Count > 1 {
		free--
	}
	s.Dims[free] = d
}
