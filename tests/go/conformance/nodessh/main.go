// Command nodessh lets Kubernetes' disruptive tests run commands at a node of the stand, over SSH.
//
// It runs inside the node's namespaces and lets in one key, whatever the user's name is. In a
// directory that comes first in PATH the stand has a systemctl, which starts and stops the
// kubelet.
package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"

	"golang.org/x/crypto/ssh"
)

func main() {
	listen := flag.String("listen", "", "address and port")
	key := flag.String("key", "", "file of the private key that is let in")
	path := flag.String("path", "", "directory that comes first in PATH")
	flag.Parse()
	if err := serve(*listen, *key, *path); err != nil {
		log.Fatal(err)
	}
}

func serve(listen, key, path string) error {
	config, err := configuration(key)
	if err != nil {
		return err
	}
	if err := os.Setenv("PATH", path+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	for {
		stream, err := listener.Accept()
		if err != nil {
			return err
		}
		go connection(stream, config)
	}
}

func configuration(file string) (*ssh.ServerConfig, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	known, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("%s is no private key: %w", file, err)
	}
	wanted := known.PublicKey()
	check := func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if bytes.Equal(key.Marshal(), wanted.Marshal()) {
			return nil, nil
		}
		return nil, errors.New("another key")
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return nil, err
	}
	config := &ssh.ServerConfig{PublicKeyCallback: check}
	config.AddHostKey(signer)
	return config, nil
}

func connection(stream net.Conn, config *ssh.ServerConfig) {
	defer stream.Close()
	_, channels, requests, err := ssh.NewServerConn(stream, config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		if offered.ChannelType() != "session" {
			_ = offered.Reject(ssh.UnknownChannelType, "only sessions")
			continue
		}
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		go session(channel, requests)
	}
}

// session runs the one command that is asked for.
func session(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for request := range requests {
		var wanted struct{ Command string }
		known := request.Type == "exec" && ssh.Unmarshal(request.Payload, &wanted) == nil
		_ = request.Reply(known, nil)
		if !known {
			continue
		}
		command := exec.Command("sh", "-c", wanted.Command)
		command.Stdout = channel
		command.Stderr = channel.Stderr()
		var code struct{ Status uint32 }
		if err := command.Run(); err != nil {
			code.Status = 255
			if ended := new(exec.ExitError); errors.As(err, &ended) && ended.ExitCode() >= 0 {
				code.Status = uint32(ended.ExitCode())
			}
		}
		log.Printf("%d from %s", code.Status, wanted.Command)
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(code))
		return
	}
}
