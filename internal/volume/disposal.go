package volume

// Disposal is what becomes of a volume that nobody wants any more, as its class
// said. It stands in the volume's tags, because the class may be gone by then.
type Disposal struct {
	Reclaim Reclaim
	Wipe    Wipe
}
