# Carries out the requests of the tests with Ruby's stomp gem, one JSON object on each line. See ../README.md.
require "json"
require "stomp"

# A connection, with what has come for it sorted.
class Talker
  attr_reader :messages, :errors

  def initialize(request)
    host, port = request["address"]
    @connection = Stomp::Connection.new(
      hosts: [{ login: request["login"], passcode: request["passcode"], host: host, port: port }],
      reliable: false, connect_headers: connect_headers(request)
    )
    @messages, @errors, @receipts = [], [], []
    @serial = 0
  end

  # The library demands a `host` as soon as a version is named; without headers it speaks 1.0.
  def connect_headers(request)
    return {} if request["version"] == "1.0" && request["virtual_host"].nil?

    headers = { "accept-version" => request["version"], "host" => request["virtual_host"] || request["address"].first }
    headers["heart-beat"] = request["heart_beat"].join(",") unless request["version"] == "1.0"
    headers
  end

  def frame
    @connection.connection_frame
  end

  def next_of(queue)
    read while queue.empty?
    queue.shift
  end

  def read
    frame = @connection.receive or raise "the server closed the connection"
    case frame.command
    when "MESSAGE" then @messages << frame
    when "ERROR" then @errors << frame
    when "RECEIPT" then @receipts << frame.headers["receipt-id"]
    end
  end

  # Calls a method of the library with a `receipt` header, and waits for it.
  def confirmed(method, *arguments, headers)
    receipt = "r-#{@serial += 1}"
    @connection.public_send(method, *arguments, headers.merge("receipt" => receipt))
    read until @receipts.include?(receipt)
    { "receipt" => true }
  end

  def plain(method, *arguments, headers)
    @connection.public_send(method, *arguments, headers)
    {}
  end

  def acknowledge(method, request)
    message = request["message"]
    identifier = @connection.protocol == "1.2" ? message["ack"] : message["message-id"]
    confirmed(method, identifier, request["headers"].merge("subscription" => request["subscription"]))
  end

  def heard?(count)
    @connection.hbrecv_count >= count
  end

  def disconnect
    @connection.disconnect("receipt" => "bye")
    frame = @connection.disconnect_receipt
    { "receipt" => frame.command == "RECEIPT" && frame.headers["receipt-id"] == "bye" }
  end
end

def shown(frame)
  { "headers" => frame.headers, "body" => frame.body.dup.force_encoding("UTF-8") }
end

def connected(talkers, request)
  talker = Talker.new(request)
  return { "refused" => shown(talker.frame) } unless talker.frame.command == "CONNECTED"

  talkers[request["connection"]] = talker
  { "connected" => talker.frame.headers }
end

def answer(talkers, request)
  return connected(talkers, request) if request["do"] == "connect"

  talker = talkers.fetch(request["connection"])
  headers = request["headers"]
  case request["do"]
  when "subscribe", "unsubscribe"
    talker.confirmed(request["do"], request["destination"], headers.merge("id" => request["id"]))
  when "send"
    way = request["unconfirmed"] ? :plain : :confirmed
    talker.public_send(way, :publish, request["destination"], request["body"], headers)
  when "receive" then shown(talker.next_of(talker.messages))
  when "error" then shown(talker.next_of(talker.errors))
  when "ack", "nack" then talker.acknowledge(request["do"], request)
  when "begin", "commit", "abort" then talker.confirmed(request["do"], request["transaction"], {})
  when "beats"
    sleep 0.05 until talker.heard?(request["count"])
    {}
  when "disconnect" then talkers.delete(request["connection"]).disconnect
  end
end

if ARGV == ["version"]
  puts "stomp gem #{Stomp::Version::STRING}, Ruby #{RUBY_VERSION}"
  exit
end
$stdout.sync = true
talkers = {}
$stdin.each_line do |line|
  seen = begin
    answer(talkers, JSON.parse(line))
  rescue StandardError => e
    { "failed" => "#{e.class}: #{e.message}" }
  end
  puts JSON.generate(seen)
end
