package wire

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFramesComeBackAsTheyWent(t *testing.T) {
	frames := []Frame{
		{Kind: Hello, Payload: []byte{}},
		{Kind: Stdout, Stream: 7, Payload: []byte("\x00\xff\n\r\x04")},
		{Kind: Stdin, Stream: 1<<32 - 1, Payload: bytes.Repeat([]byte{9}, MaxPayload)},
	}
	var b bytes.Buffer
	for _, f := range frames {
		require.NoError(t, Write(&b, f))
	}
	for _, want := range frames {
		got, err := Read(&b)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := Read(&b)
	require.Equal(t, io.EOF, err)
}

func TestReadRefusesWhatIsNoFrame(t *testing.T) {
	var whole bytes.Buffer
	require.NoError(t, Write(&whole, Frame{Kind: Exit, Payload: []byte("12345")}))
	for n := 1; n < whole.Len(); n++ {
		_, err := Read(bytes.NewReader(whole.Bytes()[:n]))
		require.Equal(t, io.ErrUnexpectedEOF, err, "after %d bytes", n)
	}
	_, err := Read(bytes.NewReader(bytes.Repeat([]byte{0xff}, headerSize)))
	require.ErrorContains(t, err, "out of range")
}

func TestWriteRefusesTooMuch(t *testing.T) {
	var b bytes.Buffer
	require.ErrorContains(t, Write(&b, Frame{Payload: make([]byte, MaxPayload+1)}), "more than a frame holds")
	require.Zero(t, b.Len())
}
