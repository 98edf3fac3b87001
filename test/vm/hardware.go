package vm

// Hardware is what a guest's machine is made of, whatever [Backend] runs it.
type Hardware struct {
	Initrd string   // the backend's, perhaps with archives appended
	Append []string // kernel arguments
	// Dir is a folder that gets what the backend itself prints.
	Dir string
	// Console is the file that gets what the kernel prints.
	Console string
	// Ports are lines by which the guest prints into files of the host. The guest
	// knows them as /dev/virtio-ports/NAME.
	Ports  []Port
	CPUs   int
	Memory int // MiB
	Drives []Drive
	NICs   []NIC
}

// Drive is a disk. The first is /dev/vda in the guest, and so on.
type Drive struct {
	Path string
	// Base is the raw image that Path holds the changes to, see
	// [Backend.CreateOverlay]; empty where Path is a raw image itself.
	Base     string
	ReadOnly bool
	// Unsafe ignores the guest's flushes: faster, and wrong where power is cut and
	// the host's with it.
	Unsafe bool
	// Serial is what the guest reads as /sys/block/vdX/serial.
	Serial string
}

// NIC is a network card on a tap device that exists. The first is eth0 in the guest.
type NIC struct {
	Tap string
	MAC string
}

// Port is a line by which the guest prints into a file.
type Port struct {
	Name, File string
}

// Program is the process that is a machine, and how to start it.
type Program struct {
	// Argv is the program by its path, and its arguments.
	Argv []string
	// Env is added to the environment.
	Env []string `json:",omitempty"`
	// Files are opened to write at their ends, as descriptors 3 and following.
	Files []string `json:",omitempty"`
	// OneProcessor says that it runs best on one processor of this machine.
	OneProcessor bool `json:",omitempty"`
}
