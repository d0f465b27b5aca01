# Carries out the requests of the tests with Net::Stomp, one JSON object on each line. See ../README.md.
use strict;
use warnings;
use Encode qw(decode_utf8 encode_utf8);
use JSON::PP;
use Net::Stomp;
use Net::Stomp::Frame;

my $json = JSON::PP->new->utf8->canonical;
my %talkers;    # name => { stomp, version, messages, errors, receipts }
my $serial = 0;

if (@ARGV && $ARGV[0] eq 'version') {
    print "Net::Stomp $Net::Stomp::VERSION, Perl $^V\n";
    exit;
}

# The library takes encoded bytes.
sub encoded {
    my ($given) = @_;
    return { map { encode_utf8($_) => encode_utf8($given->{$_}) } keys %$given };
}

sub shown {
    my ($frame) = @_;
    my $headers = $frame->headers;
    return {
        headers => { map { decode_utf8($_) => decode_utf8($headers->{$_}) } keys %$headers },
        body    => decode_utf8($frame->body),
    };
}

sub read_one {
    my ($talker) = @_;
    my $frame = $talker->{stomp}->receive_frame or die "the server closed the connection\n";
    my $command = $frame->command;
    push @{ $talker->{messages} }, $frame if $command eq 'MESSAGE';
    push @{ $talker->{errors} },   $frame if $command eq 'ERROR';
    $talker->{receipts}{ $frame->headers->{'receipt-id'} } = 1 if $command eq 'RECEIPT';
    return;
}

sub next_of {
    my ($talker, $kind) = @_;
    read_one($talker) until @{ $talker->{$kind} };
    return shown(shift @{ $talker->{$kind} });
}

sub receipt {
    my ($talker, $receipt) = @_;
    read_one($talker) until $talker->{receipts}{$receipt};
    return { receipt => JSON::PP::true };
}

# Calls a method of the library with a `receipt` header, and waits for it.
sub confirmed {
    my ($talker, $method, $headers) = @_;
    my $receipt = 'r-' . ++$serial;
    $talker->{stomp}->$method({ %$headers, receipt => $receipt });
    return receipt($talker, $receipt);
}

# The library has no methods for these frames.
sub frame {
    my ($talker, $command, $headers) = @_;
    my $receipt = 'r-' . ++$serial;
    $talker->{stomp}->send_frame(
        Net::Stomp::Frame->new({ command => $command, headers => { %$headers, receipt => $receipt } }));
    return receipt($talker, $receipt);
}

sub connect_to {
    my ($request) = @_;
    my ($host, $port) = @{ $request->{address} };
    my $stomp = Net::Stomp->new({ hostname => $host, port => $port });
    my %headers = (
        login            => $request->{login},
        passcode         => $request->{passcode},
        'accept-version' => $request->{version},
        'heart-beat'     => join(',', @{ $request->{heart_beat} }),
    );
    $headers{host} = $request->{virtual_host} if defined $request->{virtual_host};
    my $frame = $stomp->connect(\%headers) or die "no answer to CONNECT\n";
    return { refused => shown($frame) } unless $frame->command eq 'CONNECTED';
    $talkers{ $request->{connection} } =
        { stomp => $stomp, version => $request->{version}, messages => [], errors => [], receipts => {} };
    return { connected => $frame->headers };
}

sub send_message {
    my ($talker, $request) = @_;
    my %frame = (
        %{ encoded($request->{headers}) },
        destination   => $request->{destination},
        body          => encode_utf8($request->{body}),
        bytes_message => 1,    # the library's way to ask for content-length
    );
    return confirmed($talker, 'send', \%frame) unless $request->{unconfirmed};
    $talker->{stomp}->send(\%frame);
    return {};
}

sub acknowledge {
    my ($talker, $request) = @_;
    my $message = Net::Stomp::Frame->new({ command => 'MESSAGE', headers => $request->{message} });
    my %headers = (%{ $request->{headers} }, subscription => $request->{subscription}, frame => $message);
    # The library always sends `message-id`; version 1.2 wants `id`.
    $headers{id} = $request->{message}{ack} if $talker->{version} eq '1.2';
    return confirmed($talker, $request->{do}, \%headers);
}

sub leave {
    my ($name) = @_;
    my $talker = delete $talkers{$name};
    my $seen = frame($talker, 'DISCONNECT', {});
    $talker->{stomp}->socket->close;
    return $seen;
}

my %answers = (
    subscribe => sub {
        my ($talker, $request) = @_;
        return confirmed($talker, $request->{do},
            { %{ $request->{headers} }, id => $request->{id}, destination => $request->{destination} });
    },
    send    => \&send_message,
    receive => sub { next_of($_[0], 'messages') },
    error   => sub { next_of($_[0], 'errors') },
    ack     => \&acknowledge,
    nack    => \&acknowledge,
    begin   => sub { frame($_[0], uc $_[1]{do}, { transaction => $_[1]{transaction} }) },
);
$answers{unsubscribe} = $answers{subscribe};
$answers{$_} = $answers{begin} for qw(commit abort);

sub answer {
    my ($request) = @_;
    return connect_to($request) if $request->{do} eq 'connect';
    return leave($request->{connection}) if $request->{do} eq 'disconnect';
    return $answers{ $request->{do} }->($talkers{ $request->{connection} }, $request);
}

$| = 1;
while (my $line = <STDIN>) {
    my $seen = eval { answer($json->decode($line)) } || { failed => "$@" };
    print $json->encode($seen), "\n";
}
